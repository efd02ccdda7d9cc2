// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/loss_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"

namespace draftsmith::ops {

using torch::Tensor;

namespace {

/// Errors: ShapeError naming the first row where `is_right` is false, and what `describe` says of
/// its place among them.
template <class Describe>
void check_all(
    const Tensor& is_right,
    const Tensor& row_ids,
    const char* what,
    const std::string& expected,
    const Describe& describe) {
  const auto wrong = is_right.logical_not().nonzero();
  if (wrong.size(0) == 0) return;
  const int64_t place = wrong[0][0].item<int64_t>();
  throw ShapeError(
      {.what = what,
       .expected = expected,
       .got = describe(place),
       .where = fmt::format("row {}", row_ids[place].item<int64_t>())});
}

auto describe_ids(const Tensor& ids) {
  return [&ids](int64_t place) { return fmt::format("{}", ids[place].template item<int64_t>()); };
}

}  // namespace

torch::ScalarType statistics_type(const Tensor& hidden) {
  return hidden.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor
find_supervised_rows(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto [R, D] = dims<2>(rows.hidden, "hidden");
  const auto [V, Dh] = dims<2>(lm_head, "lm_head");
  check_shape(lm_head, {V, D}, "lm_head");
  check_same_kind(lm_head, rows.hidden, "lm_head", "hidden");
  check_shape(rows.labels, {R}, "labels");
  check_shape(rows.weights, {R}, "weights");
  if (options.top_k < 0 || options.top_k > V) {
    throw ShapeError(
        {.what = "top_k",
         .expected = fmt::format("0 to the vocabulary's {}", V),
         .got = fmt::format("{}", options.top_k)});
  }
  check_all(
      rows.weights.isfinite().logical_and(rows.weights >= 0),
      torch::arange(R, rows.labels.options()), "weights", "finite and >= 0",
      [&](int64_t r) { return fmt::format("{}", rows.weights[r].item<double>()); });

  const auto index = rows.weights.gt(0).nonzero().squeeze(1);
  const auto labels = rows.labels.index_select(0, index);
  check_all(
      labels.ge(0).logical_and(labels < V), index, "labels",
      fmt::format("0 to {}, an id of the vocabulary", V - 1), describe_ids(labels));
  if (rows.teacher_states.defined()) {
    const auto [M, Dt] = dims<2>(rows.teacher_states, "teacher_states");
    check_shape(rows.teacher_states, {M, D}, "teacher_states");
    check_same_kind(rows.teacher_states, rows.hidden, "teacher_states", "hidden");
    check_shape(rows.teacher_rows, {R}, "teacher_rows");
    const auto teachers = rows.teacher_rows.index_select(0, index);
    check_all(
        teachers.ge(0).logical_and(teachers < M), index, "teacher_rows",
        fmt::format("0 to {}, a row of teacher_states", M - 1), describe_ids(teachers));
  } else if (options.kl_weight != 0) {
    throw ShapeError(
        {.what = "teacher_states",
         .expected = "the teacher's states, since loss.kl_weight is not 0",
         .got = "none",
         .hint = "--loss.kl_weight=0"});
  }
  return index;
}

Tensor take_finite_rows(const Tensor& hidden, const Tensor& index) {
  const auto taken = hidden.detach().index_select(0, index);
  // A sum is finite if all its terms are; only if it is not, each is looked at.
  if (taken.sum(torch::kFloat).isfinite().item<bool>()) return taken;
  const auto is_finite = taken.isfinite();
  check_all(is_finite.all(1), index, "hidden", "finite hidden states", [&](int64_t place) {
    const auto bad = is_finite[place].logical_not();
    return fmt::format(
        "{} values that are not finite, the first {} in column {}", bad.sum().item<int64_t>(),
        taken[place].masked_select(bad)[0].item<double>(), bad.nonzero()[0][0].item<int64_t>());
  });
  return taken;
}

LossTerms make_empty_terms(const LossRows& rows, const LossOptions& options) {
  const int64_t R = rows.hidden.size(0);
  const auto wide = rows.hidden.options().requires_grad(false).dtype(statistics_type(rows.hidden));
  const auto ids = wide.dtype(torch::kLong);
  LossTerms terms;
  terms.weights = rows.weights.to(wide.dtype());
  terms.weight_sum = terms.weights.sum();
  for (Tensor* column :
       {&terms.row_loss, &terms.ce, &terms.kl, &terms.cap, &terms.label_probability})
    *column = torch::zeros({R}, wide);
  for (Tensor* column : {&terms.predicted, &terms.teacher_predicted})
    *column = torch::full({R}, -1, ids);
  terms.top_ids = torch::full({R, options.top_k}, -1, ids);
  terms.top_log_probs = torch::zeros({R, options.top_k}, wide);
  return terms;
}

Tensor
combine_terms(const Tensor& ce, const Tensor& kl, const Tensor& cap, const LossOptions& options) {
  return ce + options.kl_weight * kl + options.cap_weight * cap;
}

void put_terms(LossTerms& terms, const Tensor& index, const ChunkTerms& chunk) {
  const auto put = [&](Tensor& all, const Tensor& some) {
    if (some.defined()) all.index_copy_(0, index, some.detach().to(all.scalar_type()));
  };
  put(terms.ce, chunk.ce);
  put(terms.kl, chunk.kl);
  put(terms.cap, chunk.cap);
  put(terms.label_probability, chunk.label_probability);
  put(terms.predicted, chunk.predicted);
  put(terms.teacher_predicted, chunk.teacher_predicted);
  put(terms.top_ids, chunk.top_ids);
  put(terms.top_log_probs, chunk.top_log_probs);
}

std::vector<LossChunk>
plan_loss_chunks(const int64_t* teacher_rows, int64_t count, int64_t capacity) {
  std::vector<LossChunk> chunks;
  std::unordered_map<int64_t, int64_t> place;  // of a teacher row in `distinct` of the last chunk
  for (int64_t r = 0; r < count; ++r) {
    const bool is_new = teacher_rows != nullptr && !place.contains(teacher_rows[r]);
    const auto rows_now = chunks.empty() ? 0
                                         : r - chunks.back().begin +
                                               static_cast<int64_t>(chunks.back().distinct.size());
    if (chunks.empty() || rows_now + 1 + (is_new ? 1 : 0) > capacity) {
      chunks.push_back({.begin = r, .end = r, .distinct = {}, .inverse = {}});
      place.clear();
    }
    auto& chunk = chunks.back();
    chunk.end = r + 1;
    if (teacher_rows == nullptr) continue;
    const auto [found, was_new] =
        place.emplace(teacher_rows[r], static_cast<int64_t>(chunk.distinct.size()));
    if (was_new) chunk.distinct.push_back(teacher_rows[r]);
    chunk.inverse.push_back(found->second);
  }
  return chunks;
}

std::vector<LossChunk>
plan_even_chunks(const int64_t* teacher_rows, int64_t count, int64_t capacity) {
  auto chunks = plan_loss_chunks(teacher_rows, count, capacity);
  if (chunks.size() < 2) return chunks;
  int64_t sum = 0;
  for (const auto& chunk : chunks)
    sum += chunk.end - chunk.begin + static_cast<int64_t>(chunk.distinct.size());
  const auto number = static_cast<int64_t>(chunks.size());
  // Cut elsewhere, neighbours share a little less: some sizes above the mean are tried.
  for (int64_t even = (sum + number - 1) / number; even < capacity; even += 1 + even / 32) {
    auto evened = plan_loss_chunks(teacher_rows, count, even);
    if (evened.size() == chunks.size()) return evened;
  }
  return chunks;
}

int64_t default_chunk_rows(int64_t vocab_size, int64_t element_bytes) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int64_t kFastRows = 512;
  const int64_t rows = kBytes / (vocab_size * element_bytes);
  return rows >= kFastRows ? rows / kFastRows * kFastRows : std::max<int64_t>(16, rows);
}

LossTerms lm_head_loss(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  LossTerms terms =
      options.method == LossMethod::kFused ? fused_loss(rows, lm_head, options, make_row_stream)
      : options.method == LossMethod::kRecompute ? recomputed_loss(rows, lm_head, options)
                                                 : full_loss(rows, lm_head, options);
  terms.loss_sum = (terms.weights * terms.row_loss).sum();
  return terms;
}

}  // namespace draftsmith::ops
