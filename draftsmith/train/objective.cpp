// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/objective.h"

#include <algorithm>

namespace draftsmith::train {
namespace {

constexpr int64_t kChunkBytes = int64_t{128} << 20;  // of one array of logits

int64_t choose_chunk_rows(const LossSettings& settings, int64_t vocab_size, int64_t element_bytes) {
  if (settings.chunk_rows > 0) return settings.chunk_rows;
  return std::max<int64_t>(16, kChunkBytes / (element_bytes * vocab_size));
}

}  // namespace

ops::LossTerms compute_objective(
    const torch::Tensor& hidden,
    const torch::Tensor& lm_head,
    const torch::Tensor& teacher_states,
    const data::DraftBlocks& blocks,
    const LossSettings& settings) {
  ops::LossRows rows;
  rows.hidden = hidden.flatten(0, 1);
  rows.labels = blocks.labels.flatten();
  rows.weights = blocks.weights.flatten();
  if (teacher_states.defined() && settings.kl_weight != 0) {
    const int64_t B = teacher_states.size(0);
    const int64_t S = teacher_states.size(1);
    const auto first_row = torch::arange(B, torch::kLong).mul_(S).view({B, 1, 1});
    rows.teacher_states = teacher_states.flatten(0, 1);
    rows.teacher_rows = (blocks.teacher_rows + first_row).flatten();
  }
  const ops::LossOptions options{
      settings.kl_weight, settings.cap_weight,
      choose_chunk_rows(settings, lm_head.size(0), lm_head.element_size())};
  return settings.method == "full" ? ops::lm_head_loss_full(rows, lm_head, options)
                                   : ops::lm_head_loss(rows, lm_head, options);
}

}  // namespace draftsmith::train
