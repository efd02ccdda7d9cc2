// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/data/sequence_index.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {
namespace {

constexpr const char* kState = R"({"_data_files": [{"filename": "data.arrow"}]})";

void read_all(const std::filesystem::path& folder, size_t file_bytes) {
  const auto dataset = data::TokenDataset::open(folder, "train");
  size_t tokens = 0;
  // Rows may be claimed without bytes of their own (all empty): some are enough.
  for (int64_t i = 0; i < std::min<int64_t>(dataset.num_sequences(), 1000); ++i) {
    may_refuse([&] {
      const auto sequence = dataset.sequence(i);
      DS_CHECK(sequence.ids.size() == sequence.mask.size());
      DS_CHECK(static_cast<int64_t>(sequence.ids.size()) == dataset.length(i));
      const auto facts = dataset.facts(i);
      DS_CHECK(facts.length == dataset.length(i));
      DS_CHECK(facts.first_anchor == data::find_first_anchor(sequence.mask));
      tokens += sequence.ids.size();
    });
  }
  volatile size_t keep = tokens + file_bytes;
  (void)keep;
}

/// A good dataset of two sequences.
std::filesystem::path good_dataset() {
  const auto path = scratch() / "good";
  if (!std::filesystem::exists(path))
    data::write_dataset(path, {{{1, 2, 3}, {0, 1, 1}}, {{4, 5}, {1, 0}}});
  return path;
}

/// The index of `dataset` with some bytes replaced: two bytes of the input say where, one by what.
std::string damage_index(const data::TokenDataset& dataset, std::string_view input) {
  const auto path = scratch() / "good-index.bin";
  data::write_index(path, data::scan_sequences(dataset), dataset);
  std::string bytes = read_file(path);
  for (; input.size() >= 3; input.remove_prefix(3)) {
    const auto place = static_cast<uint8_t>(input[0]) + 256U * static_cast<uint8_t>(input[1]);
    bytes[place % bytes.size()] = input[2];
  }
  return bytes.substr(0, bytes.size() - input.size());
}

}  // namespace

void read_dataset(const uint8_t* data, size_t size) {
  const Input input(data, size, 4);
  const auto folder = empty_folder("dataset");
  may_refuse([&] {
    if (input.way == 3) {
      static const auto dataset = data::TokenDataset::open(good_dataset(), "");
      write(folder / "index.bin", damage_index(dataset, input.rest));
      const auto index = data::read_index(folder / "index.bin", dataset);
      DS_CHECK(!index || index->lengths == (std::vector<uint32_t>{3, 2}));
      return;
    }
    std::filesystem::path shards = folder;
    if (input.way == 2) {
      write(folder / "dataset_dict.json", input.rest);
      shards = folder / "train";
      std::filesystem::create_directories(shards);
    }
    write(shards / "state.json", input.way == 1 ? input.rest : kState);
    if (input.way == 0) {
      write(shards / "data.arrow", input.rest);
    } else {
      std::filesystem::copy(good_dataset() / "data-00000-of-00001.arrow", shards / "data.arrow");
    }
    read_all(folder, size);
  });
}

}  // namespace draftsmith::fuzz
