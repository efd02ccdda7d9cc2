// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/feature_store.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {
namespace {

constexpr int64_t kWidth = 4;      // D
constexpr size_t kPayload = 48;    // three tokens of the header below, in both formats

data::FeatureHeader make_header(const char* format) { return {format, {1}, kWidth, "target", 1}; }

/// Sequence 0 with three tokens, in bfloat16.
void write_good_shard(const std::filesystem::path& folder) {
  const data::StoredStates states{torch::ones({3, 2 * kWidth}, torch::kBFloat16), {}};
  formats::write_safetensors(
      data::feature_shard(folder, 0), {{"0.states", states.values}},
      {{"0", data::checksum_states(states)}});
}

/// `length` tokens of one sequence, from `begin` on.
data::TokenBatch make_batch(int64_t sequence, int64_t begin, int64_t length) {
  data::TokenBatch batch;
  batch.ids = torch::zeros({1, length}, torch::kLong);
  batch.lengths = {length};
  batch.sequences = {sequence};
  batch.parts = {{0, 0, length, sequence, begin}};
  return batch;
}

void read_all(const std::filesystem::path& folder, bool is_partial) {
  const data::FeatureStore store(folder, is_partial);
  const auto num_layers = static_cast<int64_t>(store.header().layers.size());
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 1}, {0, 3}, {2, 2}}) {
      may_refuse([&, begin = begin, length = length] {
        const auto states = store.read(make_batch(sequence, begin, length));
        DS_CHECK(states.features.size(1) == length && states.last.size(1) == length);
        DS_CHECK(states.last.size(2) == store.header().hidden_size);
        DS_CHECK(states.features.size(2) == num_layers * store.header().hidden_size);
        DS_CHECK(store.has(sequence));
      });
    }
  }
}

}  // namespace

void read_features(const uint8_t* data, size_t size) {
  const Input input(data, size, 4);
  const auto folder = empty_folder("features");
  if (input.way == 0) {
    write(folder / "features.json", input.rest);
    write_good_shard(folder);
  } else {
    data::write_feature_header(folder, make_header(input.way == 3 ? "fp8" : "bf16"));
    const auto shard = data::feature_shard(folder, 0);
    write(shard, input.way == 1 ? std::string(input.rest) : with_length(input.rest, kPayload));
  }
  for (const bool is_partial : {false, true})
    may_refuse([&] { read_all(folder, is_partial); });
}

}  // namespace draftsmith::fuzz
