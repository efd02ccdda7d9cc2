// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/top_entries.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

constexpr int kHeadThreads = 512;
constexpr int kHeadScratch = kHeadThreads / kWarp + 1;  // RowSums

/// A block per row.
template <class T, int N>
struct TeacherRowsKernel {
  static constexpr int kThreads = kHeadThreads;
  using C = Compute<T>;
  TeacherRowsParams params;

  int64_t shared_bytes() const { return shared_size<RowSums<C>>(kHeadScratch); }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t r = block.index();
    const int64_t width = params.vocab_size;
    const LogitRow<T, false> row{static_cast<const T*>(params.logits) + r * width, nullptr};
    const auto scratch = block.template shared<RowSums<C>>(kHeadScratch);
    const auto sums = sum_row<N, kThreads>(block, scratch, row, width, 0);
    if (block.thread() != 0) return;
    params.out.argmax[r] = sums.argmax;
    params.out.log_sum[r] = static_cast<double>(sums.max) + std::log(sums.exp_sum);
  }
};

/// What the gradient of a row needs.
template <class C>
struct RowGradient {
  C log_sum;          // of z
  C teacher_log_sum;  // of t
  C mean;             // mean of z under q
  C own_factor;       // 1
  C p_factor;         // kl_weight with a teacher
  C cap_factor;       // cap_weight [correct]
};

/// A block per row: one pass reduces, one writes the gradient over the logits.
template <class T, int N, bool kHasTeacher>
struct HeadRowsKernel {
  static constexpr int kThreads = kHeadThreads;
  using C = Compute<T>;
  HeadRowsParams params;

  int64_t shared_bytes() const {
    return shared_size<RowSums<C>>(kHeadScratch) + shared_size<RowGradient<C>>(1) +
           (params.top_k > 1 ? top_shared_bytes<C>() : 0);
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t r = block.index();
    const int64_t width = params.vocab_size;
    const int64_t teacher_row = kHasTeacher ? params.teacher_rows[r] : 0;
    const double teacher_log_sum = kHasTeacher ? params.teacher.log_sum[teacher_row] : 0;
    T* stored = static_cast<T*>(params.logits) + r * width;
    const LogitRow<T, kHasTeacher> row{
        stored,
        kHasTeacher ? static_cast<const T*>(params.teacher_logits) + teacher_row * width : nullptr};
    const auto scratch = block.template shared<RowSums<C>>(kHeadScratch);
    const auto shared_gradient = block.template shared<RowGradient<C>>(1);
    const auto sums = sum_row<N, kThreads>(block, scratch, row, width, teacher_log_sum);
    const double log_exp_sum = std::log(sums.exp_sum);
    if (params.top_k > 0) write_top(block, row, sums, log_exp_sum);
    if (block.thread() == 0) {
      shared_gradient.store(0, write_terms(row, sums, log_exp_sum, r, teacher_log_sum));
    }
    block.sync();  // the label's logit has been read
    if (params.needs_gradient)
      write_gradient(block, row, shared_gradient.load(0), params.labels[r], stored);
  }

 private:
  DS_DEVICE RowGradient<C> write_terms(
      const LogitRow<T, kHasTeacher>& row,
      const RowSums<C>& sums,
      double log_exp_sum,
      int64_t r,
      double teacher_log_sum) const {
    const int64_t label = params.labels[r];
    const auto max = static_cast<double>(sums.max);
    const double mean_below = sums.exp_z_sum / sums.exp_sum;
    const double label_below = static_cast<double>(row.at(label)) - max;
    const bool is_correct = sums.argmax == label;
    const double entropy = log_exp_sum - mean_below;
    params.predicted[r] = sums.argmax;
    params.ce[r] = log_exp_sum - label_below;
    params.label_probability[r] = std::exp(label_below - log_exp_sum);
    params.cap[r] = is_correct && entropy > 0 ? entropy : 0;
    params.kl[r] = 0;
    if constexpr (kHasTeacher) {
      // KL = log(1 + x) - sum p (z - t) with x = sum p (exp(z - t) - 1) when z and t nearly agree:
      // nothing of the size of the logits is left to cancel. Else x may overflow.
      const double x = sums.p_growth_sum;
      const double log_ratio =
          std::fabs(x) < 0.5 ? std::log1p(x) : max + log_exp_sum - teacher_log_sum;
      const double kl = log_ratio - sums.p_difference_sum;
      params.kl[r] = kl > 0 ? kl : 0;
    }
    return {
        static_cast<C>(max + log_exp_sum),
        static_cast<C>(teacher_log_sum),
        static_cast<C>(max + mean_below),
        C{1},
        static_cast<C>(kHasTeacher ? params.kl_weight : 0),
        static_cast<C>(is_correct ? params.cap_weight : 0)};
  }

  template <class Block>
  DS_DEVICE void write_top(
      Block& block,
      const LogitRow<T, kHasTeacher>& row,
      const RowSums<C>& sums,
      double log_exp_sum) const {
    const int64_t begin = block.index() * params.top_k;
    const auto max = static_cast<double>(sums.max);
    if (params.top_k == 1) {
      if (block.thread() == 0) {
        params.top_ids[begin] = sums.argmax;
        params.top_log_probs[begin] = -log_exp_sum;
      }
      return;
    }
    const auto top = find_top<N, kThreads>(block, row, params.vocab_size, params.top_k);
    for (int64_t i = block.thread(); i < params.top_k; i += kThreads) {
      const auto entry = top.load(i);
      params.top_ids[begin + i] = entry.index;
      params.top_log_probs[begin + i] = static_cast<double>(entry.value) - max - log_exp_sum;
    }
  }

  template <class Block>
  DS_DEVICE void write_gradient(
      Block& block,
      const LogitRow<T, kHasTeacher>& row,
      const RowGradient<C>& g,
      int64_t label,
      T* out) const {
    DS_UNROLL_BY(2)
    for (int64_t i = static_cast<int64_t>(block.thread()) * N; i < params.vocab_size;
         i += kThreads * N) {
      const auto logits = load_logits<N>(row, i);
      Vector<T, N> gradient;
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C z = logits.z[j];
        const C q = exp_for<T>(z - g.log_sum);
        C value = q * (g.own_factor - g.cap_factor * (z - g.mean));
        if constexpr (kHasTeacher) {
          const C p = exp_for<T>(logits.teacher[j] - g.teacher_log_sum);
          value += g.p_factor * (q - p);
        }
        if (i + j == label) value -= C{1};
        gradient.values[j] = narrow<T>(value);
      }
      store_vector(out + i, gradient);
    }
  }
};

template <class T, class Machine>
void run_teacher_rows_of(Machine& machine, const TeacherRowsParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  if (has_wide_rows<T>(params.vocab_size, {params.logits})) {
    machine.launch(params.rows, TeacherRowsKernel<T, kWide>{params});
  } else {
    machine.launch(params.rows, TeacherRowsKernel<T, 1>{params});
  }
}

template <class Machine>
void run_teacher_rows(Machine& machine, const TeacherRowsParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_teacher_rows_of<BF16>(machine, params);
    case Storage::kF32:
      return run_teacher_rows_of<float>(machine, params);
    case Storage::kF64:
      return run_teacher_rows_of<double>(machine, params);
  }
}

template <class T, bool kHasTeacher, class Machine>
void run_head_rows_of(Machine& machine, const HeadRowsParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  if (has_wide_rows<T>(params.vocab_size, {params.logits, params.teacher_logits})) {
    machine.launch(params.rows, HeadRowsKernel<T, kWide, kHasTeacher>{params});
  } else {
    machine.launch(params.rows, HeadRowsKernel<T, 1, kHasTeacher>{params});
  }
}

template <class T, class Machine>
void run_typed_head_rows(Machine& machine, const HeadRowsParams& params) {
  params.teacher_logits != nullptr ? run_head_rows_of<T, true>(machine, params)
                                   : run_head_rows_of<T, false>(machine, params);
}

/// top_k <= kMaxTop.
template <class Machine>
void run_head_rows(Machine& machine, const HeadRowsParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_typed_head_rows<BF16>(machine, params);
    case Storage::kF32:
      return run_typed_head_rows<float>(machine, params);
    case Storage::kF64:
      return run_typed_head_rows<double>(machine, params);
  }
}

}  // namespace draftsmith::ops::cuda
