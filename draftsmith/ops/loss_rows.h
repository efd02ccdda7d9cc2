// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/lm_head_loss.h"

namespace draftsmith::ops {

/// Checks rows, head and options against each other and returns the indices [R'] of the rows of
/// positive weight. Errors: ShapeError as `lm_head_loss` promises.
torch::Tensor find_supervised_rows(
    const LossRows& rows,
    const torch::Tensor& lm_head,
    const LossOptions& options);

/// float64 for float64 input, else float32.
torch::ScalarType statistics_type(const torch::Tensor& hidden);

/// Terms with zeros for every row, and -1 for what is predicted.
LossTerms make_empty_terms(const LossRows& rows);

/// sum of weight x (ce + kl_weight kl + cap_weight cap).
torch::Tensor
sum_terms(const LossTerms& terms, const torch::Tensor& weights, const LossOptions& options);

}  // namespace draftsmith::ops
