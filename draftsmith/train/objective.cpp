// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/objective.h"

#include <limits>

namespace draftsmith::train {
namespace {

using torch::Tensor;

int64_t choose_chunk_rows(const LossSettings& settings, int64_t vocab_size, int64_t element_bytes) {
  if (settings.chunk_rows > 0 || settings.method == "recompute") return settings.chunk_rows;
  return ops::default_chunk_rows(vocab_size, element_bytes);
}

}  // namespace

ops::LossMethod parse_loss_method(const std::string& name) {
  if (name == "full") return ops::LossMethod::kFull;
  return name == "recompute" ? ops::LossMethod::kRecompute : ops::LossMethod::kFused;
}

ops::LossOptions
loss_options(const LossSettings& settings, int64_t vocab_size, int64_t element_bytes) {
  return {
      .kl_weight = settings.kl_weight,
      .cap_weight = settings.cap_weight,
      .chunk_rows = choose_chunk_rows(settings, vocab_size, element_bytes),
      .method = parse_loss_method(settings.method)};
}

Tensor dpace_weights(
    const Tensor& label_probability,
    const Tensor& is_supervised,
    const LossSettings& loss) {
  const auto supervised = is_supervised.to(label_probability.scalar_type());
  const auto smoothed = (label_probability * (1 - loss.dpace_alpha) + loss.dpace_alpha)
                            .masked_fill(is_supervised.logical_not(), 1);
  const auto confidence = smoothed.cumprod(-1);  // of the prefix up to each slot
  if (loss.weighting == "dpace-cumulative-confidence-only") return confidence * supervised;
  const auto value = (confidence * supervised).flip(-1).cumsum(-1).flip(-1);
  if (loss.weighting == "dpace") return value * supervised;
  return value / confidence.clamp_min(std::numeric_limits<float>::min()) * supervised;
}

ops::LossTerms compute_objective(
    const torch::Tensor& hidden,
    const torch::Tensor& lm_head,
    const torch::Tensor& teacher_states,
    const data::DraftBlocks& blocks,
    const LossSettings& settings,
    int64_t top_k) {
  const auto there = [&](const Tensor& tensor) { return tensor.flatten().to(hidden.device()); };
  ops::LossRows rows;
  rows.hidden = hidden.flatten(0, 1);
  rows.labels = there(blocks.labels);
  rows.weights = there(blocks.weights);
  if (teacher_states.defined() && settings.kl_weight != 0) {
    const int64_t B = teacher_states.size(0);
    const int64_t S = teacher_states.size(1);
    const auto first_row = torch::arange(B, torch::kLong).mul_(S).view({B, 1, 1});
    rows.teacher_states = teacher_states.flatten(0, 1);
    rows.teacher_rows = there(blocks.teacher_rows + first_row);
  }
  auto options = loss_options(settings, lm_head.size(0), lm_head.element_size());
  options.top_k = top_k;
  auto terms = ops::lm_head_loss(rows, lm_head, options);
  if (settings.is_dpace()) {
    const auto shape = blocks.weights.sizes();
    terms.weights =
        dpace_weights(terms.label_probability.view(shape), rows.weights.view(shape) > 0, settings)
            .flatten();
    terms.weight_sum = torch::full_like(terms.weight_sum, blocks.num_rows);
    terms.loss_sum = (terms.weights * terms.row_loss).sum();
  }
  return terms;
}

}  // namespace draftsmith::train
