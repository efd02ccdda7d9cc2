// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/model/drafter.h"

namespace draftsmith::eval {

/// Inputs on which two programs, or two layouts of one, compare a drafter: blocks at anchors where
/// masks are easily wrong (no context, a block's length, either side of the sliding window).
struct LayoutInputs {
  torch::Tensor embedded;  // [1, N K, D] fp32
  torch::Tensor features;  // [1, S, F] fp32
  torch::Tensor anchors;   // [1, N] int64, ascending
};

/// Normal random numbers, the same in every call.
LayoutInputs make_layout_inputs(const formats::DrafterConfig& config);

/// States as training computes them: all blocks in one forward under a mask. [1, N K, D]
torch::Tensor training_states(const model::Drafter& drafter, const LayoutInputs& inputs);

/// States as decoding computes them: block by block, with the context in a cache. [1, N K, D]
torch::Tensor decoding_states(const model::Drafter& drafter, const LayoutInputs& inputs);

/// The float32 rounding that differently ordered sums of this drafter may show, as a share of the
/// L2 norm: 4 epsilon sqrt(longest sum).
double layout_tolerance(const formats::DrafterConfig& config, const LayoutInputs& inputs);

/// What the drafter in memory gives, for a program that knows only its exported files: `hidden`,
/// the inputs, and the parts of its config that states do not show.
void write_layout_case(const std::filesystem::path& path, const model::Drafter& drafter);

/// Loads an exported folder and compares it with such a file.
struct LayoutReport {
  std::vector<std::string> config_differences;  // "key: expected X, got Y"
  double export_difference = 0;                 // states from the files against those in memory
  double layout_difference = 0;                 // training against decoding layout, of the files
  double tolerance = 0;
  bool is_good() const;
};

/// Errors: DataError for a folder or file that cannot be read.
LayoutReport check_exported_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& layout_case);

}  // namespace draftsmith::eval
