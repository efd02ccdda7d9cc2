// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/feature_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/checksum.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {
namespace {

constexpr const char* kHeaderName = "features.json";
constexpr double kLargestFloat8 = 448;
constexpr double kLargestInt8 = 127;
constexpr int64_t kPieceElements = int64_t{1} << 20;

uint32_t add_checksum(const torch::Tensor& tensor, uint32_t crc) {
  return crc32c(
      {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())},
      crc);
}

}  // namespace

int64_t FeatureHeader::bytes_per_token() const {
  return num_parts() * (format == "bf16" ? 2 * hidden_size : hidden_size + 4);
}

StoredStates
pack_states(const torch::Tensor& states, int64_t num_parts, const std::string& format) {
  if (format == "bf16") return {states.to(torch::kBFloat16).contiguous(), {}};
  const bool is_float8 = format == "fp8";
  DS_CHECK(is_float8 || format == "int8");
  const auto parts = states.to(torch::kFloat).unflatten(-1, {num_parts, -1});  // [T, parts, D]
  const auto largest = parts.abs().amax(-1, /*keepdim=*/true);
  // A part of zeros keeps them with any scale.
  const auto scales =
      torch::where(largest > 0, largest, 1.0) / (is_float8 ? kLargestFloat8 : kLargestInt8);
  const auto scaled = (parts / scales).flatten(1);
  return {
      is_float8 ? scaled.to(c10::kFloat8_e4m3fn) : scaled.round().to(torch::kChar),
      scales.squeeze(-1).contiguous()};
}

torch::Tensor unpack_states(const StoredStates& stored, int64_t num_parts) {
  if (!stored.scales.defined()) return stored.values;
  const int64_t T = stored.values.size(0);
  const int64_t width = stored.values.size(1);
  auto states = torch::empty({T, width}, torch::kBFloat16);
  // In pieces: float32 states of a long sequence would be four times its record.
  const int64_t piece = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, width));
  for (int64_t begin = 0; begin < T; begin += piece) {
    const int64_t count = std::min(piece, T - begin);
    const auto parts = stored.values.narrow(0, begin, count)
                           .to(torch::kFloat)
                           .unflatten(-1, {num_parts, width / num_parts});
    const auto scales = stored.scales.narrow(0, begin, count).unsqueeze(-1);
    states.narrow(0, begin, count).copy_((parts * scales).flatten(1));
  }
  return states;
}

std::string checksum_states(const StoredStates& stored) {
  uint32_t crc = add_checksum(stored.values, 0);
  if (stored.scales.defined()) crc = add_checksum(stored.scales, crc);
  return fmt::format("{:08x}", crc);
}

bool is_feature_folder(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kHeaderName);
}

FeatureHeader read_feature_header(const std::filesystem::path& folder) {
  const auto json = formats::JsonObject::from_file(folder / kHeaderName);
  FeatureHeader header;
  header.format = json.text("format");
  if (header.format != "bf16" && header.format != "fp8" && header.format != "int8") {
    throw DataError(
        {.what = "format",
         .expected = "bf16, fp8 or int8",
         .got = "'" + header.format + "'",
         .where = json.where()});
  }
  header.layers = json.integers("layers");
  if (header.layers.size() > 1024) {
    throw DataError(
        {.what = "layers",
         .expected = "at most 1024",
         .got = fmt::format("{}", header.layers.size()),
         .where = json.where()});
  }
  header.hidden_size = json.integer("hidden_size", 1, int64_t{1} << 20);
  header.target = json.text("target");
  header.num_shards = json.integer("num_shards", 0, int64_t{1} << 20);
  header.dataset = json.text_or("dataset", "");  // older folders do not say
  header.batches = json.text_or("batches", "");
  return header;
}

void write_feature_header(const std::filesystem::path& folder, const FeatureHeader& header) {
  const formats::Json json = {{"format", header.format},           {"layers", header.layers},
                              {"hidden_size", header.hidden_size}, {"target", header.target},
                              {"num_shards", header.num_shards},   {"dataset", header.dataset},
                              {"batches", header.batches}};
  write_file_atomically(folder / kHeaderName, json.dump(2) + "\n");
}

std::string describe_batching(const DataSettings& settings) {
  return fmt::format(
      "split '{}', {}, {} above {} tokens, {} tokens and {} sequences a batch, {} buckets, seed "
      "{}, held out {}",
      settings.split, settings.batching, settings.overlong, settings.max_length,
      settings.tokens_per_batch, settings.max_sequences_per_batch, settings.num_buckets,
      settings.seed, settings.held_out);
}

std::filesystem::path feature_shard(const std::filesystem::path& folder, int64_t number) {
  return folder / fmt::format("features-{:05d}.safetensors", number);
}

}  // namespace draftsmith::data
