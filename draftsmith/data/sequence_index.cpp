// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/sequence_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/formats/mapped_file.h"

namespace draftsmith::data {
namespace fs = std::filesystem;
namespace {

constexpr char kMagic[8] = {'D', 'S', 'I', 'N', 'D', 'E', 'X', '1'};

/// magic, fingerprint length, sequences, smallest and largest id; then the fingerprint, lengths,
/// first anchors, and a checksum of all that stands before it.
struct Header {
  char magic[8];
  uint64_t fingerprint_bytes;
  uint64_t num_sequences;
  int64_t smallest_id;
  int64_t largest_id;
};
static_assert(std::is_trivially_copyable_v<Header>);

/// FNV-1a over words of 8 bytes; the last word is filled with zeros.
uint64_t checksum(const char* bytes, size_t count) {
  uint64_t state = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, count - i));
    state = (state ^ word) * 0x100000001b3ULL;
    state ^= state >> 32;
  }
  return state;
}

/// Two datasets of one run must not share a file in its folder.
fs::path path_in_folder(const TokenDataset& dataset, const fs::path& folder) {
  const std::string name = fs::absolute(dataset.folder()).lexically_normal().string();
  return folder / fmt::format("dataset-index-{:016x}.bin", checksum(name.data(), name.size()));
}

fs::path path_beside(const TokenDataset& dataset) {
  return dataset.folder() / "draftsmith-index.bin";
}

}  // namespace

SequenceIndex scan_sequences(const TokenDataset& dataset) {
  const int64_t count = dataset.num_sequences();
  SequenceIndex index;
  index.lengths.reserve(static_cast<size_t>(count));
  index.first_anchors.reserve(static_cast<size_t>(count));
  index.smallest_id = INT64_MAX;
  Progress progress(fmt::format("reading {} once", dataset.folder().string()), count, "sequences");
  for (int64_t i = 0; i < count; ++i) {
    const SequenceFacts facts = dataset.facts(i);
    if (facts.length >= SequenceIndex::kNoAnchor) {
      throw DataError(
          {.what = "sequence",
           .expected = "fewer than 4294967295 tokens",
           .got = fmt::format("{}", facts.length),
           .where = fmt::format("{}, row {}", dataset.folder().string(), i)});
    }
    index.lengths.push_back(static_cast<uint32_t>(facts.length));
    index.first_anchors.push_back(
        facts.first_anchor < 0 ? SequenceIndex::kNoAnchor
                               : static_cast<uint32_t>(facts.first_anchor));
    if (facts.length > 0) {
      index.smallest_id = std::min(index.smallest_id, facts.smallest_id);
      index.largest_id = std::max(index.largest_id, facts.largest_id);
    }
    if (i % 256 == 0) progress.update(i + 1);
  }
  if (index.smallest_id == INT64_MAX) index.smallest_id = 0;
  if (progress.seconds() > 1) {
    progress.update(count);
    progress.finish();
  }
  return index;
}

std::optional<SequenceIndex> read_index(const fs::path& path, const TokenDataset& dataset) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) == 0 || error)
    return std::nullopt;
  const auto file = formats::MappedFile::open(path);
  const auto* bytes = reinterpret_cast<const char*>(file->data());
  const auto num_sequences = static_cast<size_t>(dataset.num_sequences());
  const std::string& fingerprint = dataset.fingerprint();
  const size_t column_bytes = num_sequences * sizeof(uint32_t);
  const size_t body = sizeof(Header) + fingerprint.size() + 2 * column_bytes;
  if (file->size_bytes() != body + sizeof(uint64_t)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes, sizeof header);
  uint64_t stored = 0;
  std::memcpy(&stored, bytes + body, sizeof stored);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
      header.fingerprint_bytes != fingerprint.size() || header.num_sequences != num_sequences ||
      std::memcmp(bytes + sizeof header, fingerprint.data(), fingerprint.size()) != 0 ||
      stored != checksum(bytes, body))
    return std::nullopt;
  SequenceIndex index;
  index.smallest_id = header.smallest_id;
  index.largest_id = header.largest_id;
  index.lengths.resize(num_sequences);
  index.first_anchors.resize(num_sequences);
  const char* columns = bytes + sizeof header + fingerprint.size();
  std::memcpy(index.lengths.data(), columns, column_bytes);
  std::memcpy(index.first_anchors.data(), columns + column_bytes, column_bytes);
  for (size_t i = 0; i < num_sequences; ++i) {
    const uint32_t anchor = index.first_anchors[i];
    const bool is_anchor_inside =
        anchor == SequenceIndex::kNoAnchor || int64_t{anchor} + 1 < int64_t{index.lengths[i]};
    if (dataset.length(static_cast<int64_t>(i)) != index.lengths[i] || !is_anchor_inside)
      return std::nullopt;
  }
  return index;
}

void write_index(const fs::path& path, const SequenceIndex& index, const TokenDataset& dataset) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.fingerprint_bytes = dataset.fingerprint().size();
  header.num_sequences = index.lengths.size();
  header.smallest_id = index.smallest_id;
  header.largest_id = index.largest_id;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += dataset.fingerprint();
  const auto append = [&](const auto& column) {
    bytes.append(
        reinterpret_cast<const char*>(column.data()), column.size() * sizeof column.front());
  };
  append(index.lengths);
  append(index.first_anchors);
  const uint64_t sum = checksum(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  write_file_atomically(path, bytes);
}

SequenceIndex load_index(const TokenDataset& dataset, const fs::path& folder, bool& was_scanned) {
  was_scanned = false;
  if (auto index = read_index(path_beside(dataset), dataset)) return *std::move(index);
  if (!folder.empty())
    if (auto index = read_index(path_in_folder(dataset, folder), dataset)) return *std::move(index);
  was_scanned = true;
  return scan_sequences(dataset);
}

void keep_index(const SequenceIndex& index, const TokenDataset& dataset, const fs::path& folder) {
  try {
    write_index(path_beside(dataset), index, dataset);
    return;
  } catch (const Error&) {  // read-only, as shared datasets often are
  }
  try {
    write_index(path_in_folder(dataset, folder), index, dataset);
  } catch (const Error& error) {
    log_warning(fmt::format("the index of the dataset is not kept: {}", error.what()));
  }
}

}  // namespace draftsmith::data
