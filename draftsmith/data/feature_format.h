// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/settings.h"

namespace draftsmith::data {

/// What a folder of stored target states was made from and how. The folder holds a copy of the
/// dataset (so it is one itself), features.json with this, and shards features-N.safetensors.
/// A sequence's record is two tensors, N.states [T, (layers + 1) D] and, in fp8 and int8,
/// N.scales [T, layers + 1] fp32: the captured layers side by side, then the state after the final
/// norm. A shard's metadata has the CRC-32C of every record.
struct FeatureHeader {
  std::string format = "bf16";  // bf16, fp8 (e4m3) or int8
  std::vector<int64_t> layers;  // ids, in this order
  int64_t hidden_size = 0;      // D
  std::string target;           // fingerprint of the target's folder
  int64_t num_shards = 0;       // 0 until all sequences are there
  std::string dataset = {};     // fingerprint of the dataset
  std::string batches = {};     // describe_batching of the settings that made the batches

  int64_t num_parts() const { return static_cast<int64_t>(layers.size()) + 1; }
  int64_t bytes_per_token() const;
};

/// States of one position in a narrower format.
struct StoredStates {
  torch::Tensor values;  // [T, parts D] bf16, float8 or int8
  torch::Tensor scales;  // [T, parts] fp32, undefined for bf16
};

/// `states` [T, parts D]; in fp8 and int8 every position and part has the scale that maps its
/// largest magnitude to the format's.
StoredStates pack_states(
    const torch::Tensor& states,
    int64_t num_parts,
    const std::string& format);

/// The inverse, in bfloat16 [T, parts D].
torch::Tensor unpack_states(const StoredStates& stored, int64_t num_parts);

/// CRC-32C of a record's bytes, in hexadecimal.
std::string checksum_states(const StoredStates& stored);

bool is_feature_folder(const std::filesystem::path& folder);
FeatureHeader read_feature_header(const std::filesystem::path& folder);
void write_feature_header(const std::filesystem::path& folder, const FeatureHeader& header);

/// The settings that decide which pieces of sequences stand together in a batch, as text. Shards
/// hold whole batches, so an extract goes on only with those that it began with.
std::string describe_batching(const DataSettings& settings);

std::filesystem::path feature_shard(const std::filesystem::path& folder, int64_t number);

}  // namespace draftsmith::data
