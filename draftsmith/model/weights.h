// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::model {

/// `kFloat32` stays float32 whatever the model's dtype.
enum class WeightKind { kMatrix, kNorm, kBias, kFloat32 };

/// One tensor of a checkpoint.
struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;  // matrices are [out, in]
  WeightKind kind;
  int64_t layer = -1;  // of a target: -1 = before the first layer, L = after the last one
};

/// All tensors of a target, `lm_head.weight` only if the head is not tied.
std::vector<WeightSpec> list_target_weights(const formats::TargetConfig& config);

/// All tensors of a drafter, in the order of training and of checkpoints.
std::vector<WeightSpec> list_drafter_weights(const formats::DrafterConfig& config);

using WeightMap = std::map<std::string, torch::Tensor>;

/// Takes every listed tensor, converted to `dtype`; without a conversion it stays a view of the
/// mapped file. Conversions go piece by piece and give the file's pages back, so that the peak is
/// the tensors' own size. A float8 tensor NAME is multiplied by NAME_scale_inv, one factor for
/// 128 x 128 elements. Everything is checked before the first byte is read. Tensors of the file that nothing uses are listed once in the log; those of vision
/// towers and of extra prediction layers (`visual.`, `mtp.`) are expected there.
/// Errors: DataError for a tensor that is missing, of another shape or not of a float dtype.
WeightMap load_weights(
    const formats::SafetensorsReader& reader,
    const std::vector<WeightSpec>& specs,
    torch::ScalarType dtype,
    const std::vector<std::string>& known_extras = {},
    const std::function<torch::Device(const WeightSpec&)>& place = {});  // absent = the CPU

/// Bytes of a tensor in `dtype`.
int64_t count_bytes(const WeightSpec& spec, torch::ScalarType dtype);

/// Spreads parts in their order over devices so that each gets about the same bytes.
std::vector<size_t> split_by_bytes(  // [parts] number of the device, ascending
    const std::vector<int64_t>& bytes,
    size_t num_devices);

}  // namespace draftsmith::model
