// SPDX-License-Identifier: Apache-2.0
// What stands in for reading and writing datasets in a build without Arrow.
#include "draftsmith/base/error.h"
#include "draftsmith/data/dataset_writer.h"

namespace draftsmith::data {
namespace {

[[noreturn]] void fail() {
  throw DataError(
      {.what = "datasets",
       .expected = "a build with Arrow",
       .got = "one without",
       .hint = "configuring with -D DS_WITH_ARROW=ON"});
}

}  // namespace

struct TokenDataset::Shards {};

TokenDataset TokenDataset::open(const std::filesystem::path&, const std::string&) { fail(); }
TokenDataset::TokenDataset(TokenDataset&&) noexcept = default;
TokenDataset& TokenDataset::operator=(TokenDataset&&) noexcept = default;
TokenDataset::~TokenDataset() = default;
int64_t TokenDataset::num_sequences() const { fail(); }
int64_t TokenDataset::length(int64_t) const { fail(); }
TokenSequence TokenDataset::sequence(int64_t) const { fail(); }
SequenceFacts TokenDataset::facts(int64_t) const { fail(); }
const std::string& TokenDataset::fingerprint() const { fail(); }
const std::filesystem::path& TokenDataset::folder() const { fail(); }

struct DatasetWriter::State {};

DatasetWriter::DatasetWriter(const std::filesystem::path&, int64_t) { fail(); }
DatasetWriter::~DatasetWriter() = default;
const std::filesystem::path& DatasetWriter::staging() const { fail(); }
void DatasetWriter::add(const TokenSequence&) { fail(); }
void DatasetWriter::finish() { fail(); }
void write_dataset(const std::filesystem::path&, const std::vector<TokenSequence>&) { fail(); }

}  // namespace draftsmith::data
