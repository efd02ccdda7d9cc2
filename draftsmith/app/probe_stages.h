// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/app/command_line.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::app {

/// The input file of a probe; tensors are checked as they are taken.
class ProbeInput {
 public:
  explicit ProbeInput(const std::string& path);

  bool has(const std::string& name) const { return reader_.has(name); }

  /// Errors: ShapeError if the tensor is missing or has another number of dimensions.
  torch::Tensor get(const std::string& name, int64_t rank) const;

  /// The same as int64. Errors: ShapeError for a tensor that is not of an integer type.
  torch::Tensor ids(const std::string& name, int64_t rank) const;

 private:
  formats::SafetensorsReader reader_;
};

/// Errors: DataError for an id outside the vocabulary.
void check_ids(const torch::Tensor& ids, int64_t vocab_size);

formats::NamedTensors probe_target(const ProbeInput& input, const RunConfig& config);
formats::NamedTensors probe_blocks(const ProbeInput& input, const RunConfig& config);
formats::NamedTensors
probe_drafter(const ProbeInput& input, const RunConfig& config, bool has_gradients);
formats::NamedTensors
probe_loss(const ProbeInput& input, const RunConfig& config, torch::ScalarType dtype);
formats::NamedTensors probe_tree(const ProbeInput& input, int64_t budget);
formats::NamedTensors probe_decode(const ProbeInput& input, const RunConfig& config);

}  // namespace draftsmith::app
