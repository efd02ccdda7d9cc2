// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};

/// All tensors of a target, `lm_head.weight` only if the head is not tied.
std::vector<WeightSpec> list_target_weights(const formats::TargetConfig& config);

/// All tensors of a drafter, in the order of training and of checkpoints.
std::vector<WeightSpec> list_drafter_weights(const formats::DrafterConfig& config);

using WeightMap = std::map<std::string, torch::Tensor>;

/// Takes every listed tensor, converted to `dtype`; without a conversion it stays a view of the
/// mapped file. Tensors of the file that nothing uses are listed once in the log; those of vision
/// towers and of extra prediction layers (`visual.`, `mtp.`) are expected there.
/// Errors: DataError for a tensor that is missing, of another shape or not of a float dtype.
WeightMap load_weights(
    const formats::SafetensorsReader& reader,
    const std::vector<WeightSpec>& specs,
    torch::ScalarType dtype,
    const std::vector<std::string>& known_extras = {});

}  // namespace draftsmith::model
