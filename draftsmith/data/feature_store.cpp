// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/feature_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "draftsmith/base/error.h"

namespace draftsmith::data {
namespace {

constexpr std::string_view kStates = ".states";

/// The sequence of a tensor "N.states", or -1.
int64_t parse_name(const std::string& name) {
  int64_t number = -1;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, number);
  const bool is_record = error == std::errc() && std::string_view(rest, end) == kStates;
  return is_record && number >= 0 ? number : -1;
}

std::string states_name(int64_t sequence) { return fmt::format("{}{}", sequence, kStates); }

[[noreturn]] void fail(std::string what, std::string expected, std::string got, std::string where) {
  throw DataError(
      {.what = std::move(what),
       .expected = std::move(expected),
       .got = std::move(got),
       .where = std::move(where),
       .hint = "extracting into a new folder"});
}

void check_dtype(
    const formats::SafetensorsReader& shard,
    const std::string& name,
    torch::ScalarType dtype) {
  const auto found = shard.dtype(name);
  if (found != dtype) fail(name, c10::toString(dtype), c10::toString(found), shard.where());
}

}  // namespace

FeatureStore::FeatureStore(const std::filesystem::path& folder, bool is_partial)
    : folder_(folder), header_(read_feature_header(folder)) {
  if (header_.num_shards == 0 && !is_partial) {
    throw DataError(
        {.what = "stored features",
         .expected = "a folder that extract has finished",
         .got = "one that it has not",
         .where = folder.string(),
         .hint = "running extract again: it goes on where it stopped"});
  }
  for (int64_t i = 0; i < header_.num_shards ||
                      (is_partial && std::filesystem::exists(feature_shard(folder, i)));
       ++i) {
    auto& shard =
        shards_.emplace_back(formats::SafetensorsReader::open_file(feature_shard(folder, i)));
    for (const std::string& name : shard.names()) {
      const int64_t sequence = parse_name(name);
      if (sequence < 0) continue;
      const auto& shape = shard.shape(name);
      if (shape.size() != 2 || shape[1] != header_.num_parts() * header_.hidden_size)
        fail(
            name, fmt::format("rows of {}", header_.num_parts() * header_.hidden_size),
            fmt::format("[{}]", fmt::join(shape, ", ")), shard.where());
      if (!places_.emplace(sequence, shards_.size() - 1).second)
        fail(name, "one record of a sequence", "a second one", shard.where());
    }
  }
}

void FeatureStore::check_origin(const std::string& target, const std::vector<int64_t>& layers)
    const {
  const auto refuse = [&](const char* what, std::string expected, std::string got) {
    throw DataError(
        {.what = what,
         .expected = std::move(expected),
         .got = std::move(got),
         .where = folder_.string(),
         .hint = "extracting the features again"});
  };
  if (header_.target != target)
    refuse("target of the stored features", "this target, " + target, header_.target);
  if (header_.layers != layers)
    refuse(
        "layers of the stored features",
        fmt::format("the drafter's, [{}]", fmt::join(layers, ", ")),
        fmt::format("[{}]", fmt::join(header_.layers, ", ")));
}

const formats::SafetensorsReader& FeatureStore::find_shard(int64_t sequence) const {
  const auto place = places_.find(sequence);
  if (place == places_.end())
    fail(fmt::format("sequence {}", sequence), "its features", "none", folder_.string());
  return shards_[place->second];
}

torch::Tensor FeatureStore::read_record(int64_t sequence) const {
  const auto& shard = find_shard(sequence);
  const std::string name = states_name(sequence);
  const int64_t T = shard.shape(name)[0];
  const int64_t parts = header_.num_parts();
  StoredStates stored{shard.tensor(name, {T, parts * header_.hidden_size}), {}};
  const auto dtype = header_.format == "bf16"  ? torch::kBFloat16
                     : header_.format == "fp8" ? c10::kFloat8_e4m3fn
                                               : torch::kChar;
  check_dtype(shard, name, dtype);
  if (header_.format != "bf16") {
    const std::string scales = fmt::format("{}.scales", sequence);
    check_dtype(shard, scales, torch::kFloat);
    stored.scales = shard.tensor(scales, {T, parts});
  }
  const std::lock_guard lock(mutex_);
  if (checked_.count(sequence) == 0) {
    const std::string wanted = shard.metadata(std::to_string(sequence));
    const std::string found = checksum_states(stored);
    if (found != wanted)
      fail(
          fmt::format("features of sequence {}", sequence), "checksum " + wanted, found,
          shard.where());
    checked_.insert(sequence);
  }
  return unpack_states(stored, parts);
}

FeatureStore::BatchStates FeatureStore::read(const TokenBatch& tokens) const {
  const int64_t width = header_.num_parts() * header_.hidden_size;
  // All that is asked for is there, before memory is taken for it.
  for (const RowPart& part : tokens.parts) {
    const auto& shard = find_shard(part.sequence);
    const int64_t end = part.sequence_begin + part.length;
    const int64_t stored = shard.shape(states_name(part.sequence))[0];
    if (stored < end)
      fail(
          fmt::format("features of sequence {}", part.sequence), fmt::format("{} tokens", end),
          fmt::format("{}", stored), shard.where());
  }
  auto states = torch::zeros(
      {tokens.ids.size(0), tokens.ids.size(1), width}, torch::TensorOptions(torch::kBFloat16));
  for (const RowPart& part : tokens.parts) {
    states[part.row]
        .narrow(0, part.row_begin, part.length)
        .copy_(read_record(part.sequence).narrow(0, part.sequence_begin, part.length));
  }
  const int64_t D = header_.hidden_size;
  return {states.narrow(2, 0, width - D), states.narrow(2, width - D, D)};
}

}  // namespace draftsmith::data
