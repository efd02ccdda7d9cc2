// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/lm_head_loss.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include <hwy/contrib/math/math-inl.h>

#include "draftsmith/ops/cpu/storage-inl.h"
#include "draftsmith/ops/cpu/top_k-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A row of logits z, read in the compute type C. With a teacher row t it is stored as z - t.
template <class T>
struct LogitRow {
  using C = typename Stored<T>::Compute;
  using D = hn::ScalableTag<C>;
  using V = hn::Vec<D>;

  const T* stored;   // z, or z - t
  const T* teacher;  // t or null

  HWY_INLINE V difference(D d, int64_t i) const { return load_wide(d, stored + i); }
  HWY_INLINE V teacher_at(D d, int64_t i) const { return load_wide(d, teacher + i); }
  template <bool kHasTeacher>
  HWY_INLINE V at(D d, int64_t i) const {
    if constexpr (kHasTeacher) return hn::Add(difference(d, i), teacher_at(d, i));
    return difference(d, i);
  }
  template <bool kHasTeacher>
  C scalar(int64_t i) const {
    return kHasTeacher ? load_scalar(stored + i) + load_scalar(teacher + i)
                       : load_scalar(stored + i);
  }
};

/// The part of a row that whole vectors cover; the rest is done by `scalar` code.
template <class D>
int64_t vector_end(D d, int64_t width) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  return width / lanes * lanes;
}

constexpr int64_t kStretch = 2048;  // elements summed in the compute type

template <class C>
struct Maximum {
  C value;
  int64_t index;
};

/// Largest value of a row and the first place where it stands.
template <bool kHasTeacher, class T>
Maximum<typename Stored<T>::Compute> find_maximum(const LogitRow<T>& row, int64_t width) {
  using C = typename Stored<T>::Compute;
  const typename LogitRow<T>::D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = vector_end(d, width);
  auto best = hn::Set(d, hwy::LowestValue<C>());
  for (int64_t i = 0; i < end; i += lanes)
    best = hn::Max(best, row.template at<kHasTeacher>(d, i));
  C top = hn::GetLane(hn::MaxOfLanes(d, best));
  for (int64_t i = end; i < width; ++i)
    top = std::max(top, row.template scalar<kHasTeacher>(i));
  const auto wanted = hn::Set(d, top);
  for (int64_t i = 0; i < end; i += lanes) {
    const auto found = hn::FindFirstTrue(d, hn::Eq(row.template at<kHasTeacher>(d, i), wanted));
    if (found >= 0) return {top, i + found};
  }
  for (int64_t i = end; i < width; ++i)
    if (row.template scalar<kHasTeacher>(i) == top) return {top, i};
  return {top, 0};  // all NaN; the caller has refused such rows
}

template <class T>
void teacher_row(const TeacherRowsParams& params, int64_t r) {
  const typename LogitRow<T>::D d;
  const int64_t width = params.vocab_size;
  const LogitRow<T> row{static_cast<const T*>(params.logits) + r * width, nullptr};
  const auto maximum = find_maximum<false>(row, width);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = vector_end(d, width);
  const auto top = hn::Set(d, maximum.value);
  double sum = 0;
  for (int64_t begin = 0; begin < end; begin += kStretch) {
    auto stretch = hn::Zero(d);
    for (int64_t i = begin; i < std::min(begin + kStretch, end); i += lanes)
      stretch = hn::Add(stretch, hn::Exp(d, hn::Sub(row.difference(d, i), top)));
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, stretch)));
  }
  for (int64_t i = end; i < width; ++i)
    sum += static_cast<double>(std::exp(row.template scalar<false>(i) - maximum.value));
  params.out.argmax[r] = maximum.index;
  params.out.log_sum[r] = static_cast<double>(maximum.value) + std::log(sum);
}

/// Sums over a row that all its terms follow from. Vectors sum in the compute type over short
/// stretches only, and the stretches in double, so that 250,000 terms lose no digits.
struct RowSums {
  double exp_sum = 0;           // sum exp(z - max)
  double exp_z_sum = 0;         // sum exp(z - max) (z - max)
  double p_growth_sum = 0;      // sum p (exp(z - t) - 1)
  double p_difference_sum = 0;  // sum p (z - t)
};

template <bool kHasTeacher, class T>
RowSums sum_row(
    const LogitRow<T>& row,
    int64_t width,
    typename Stored<T>::Compute max,
    double teacher_log_sum) {
  using C = typename Stored<T>::Compute;
  const typename LogitRow<T>::D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = vector_end(d, width);
  const auto top = hn::Set(d, max);
  const auto teacher_top = hn::Set(d, static_cast<C>(teacher_log_sum));
  const C ratio =
      std::exp(max - static_cast<C>(teacher_log_sum));  // p exp(z - t) = exp(z - max) ratio
  const auto ratios = hn::Set(d, ratio);
  RowSums sums;
  for (int64_t begin = 0; begin < end; begin += kStretch) {
    auto exp_sum = hn::Zero(d), exp_z_sum = hn::Zero(d);
    auto growth_sum = hn::Zero(d), difference_sum = hn::Zero(d);
    for (int64_t i = begin; i < std::min(begin + kStretch, end); i += lanes) {
      const auto below = hn::Sub(row.template at<kHasTeacher>(d, i), top);
      const auto e = hn::Exp(d, below);
      exp_sum = hn::Add(exp_sum, e);
      exp_z_sum = hn::MulAdd(e, below, exp_z_sum);
      if constexpr (kHasTeacher) {
        const auto p = hn::Exp(d, hn::Sub(row.teacher_at(d, i), teacher_top));
        growth_sum = hn::Add(growth_sum, hn::MulSub(e, ratios, p));
        difference_sum = hn::MulAdd(p, row.difference(d, i), difference_sum);
      }
    }
    sums.exp_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, exp_sum)));
    sums.exp_z_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, exp_z_sum)));
    sums.p_growth_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, growth_sum)));
    sums.p_difference_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, difference_sum)));
  }
  for (int64_t i = end; i < width; ++i) {
    const C below = row.template scalar<kHasTeacher>(i) - max;
    const C e = std::exp(below);
    sums.exp_sum += static_cast<double>(e);
    sums.exp_z_sum += static_cast<double>(e * below);
    if constexpr (kHasTeacher) {
      const C p = std::exp(load_scalar(row.teacher + i) - static_cast<C>(teacher_log_sum));
      sums.p_growth_sum += static_cast<double>(e * ratio - p);
      sums.p_difference_sum += static_cast<double>(p * load_scalar(row.stored + i));
    }
  }
  return sums;
}

/// What the gradient of a row needs.
template <class C>
struct RowGradient {
  C log_sum;          // of z
  C teacher_log_sum;  // of t
  C mean;             // mean of z under q
  C q_factor;         // 1 + kl_weight
  C p_factor;         // kl_weight
  C cap_factor;       // cap_weight [correct]
  int64_t label;
};

template <bool kHasTeacher, class T>
void write_gradient(
    const LogitRow<T>& row,
    int64_t width,
    const RowGradient<typename Stored<T>::Compute>& g,
    T* out) {
  using C = typename Stored<T>::Compute;
  const typename LogitRow<T>::D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = vector_end(d, width);
  const C label_z = row.template scalar<kHasTeacher>(g.label);
  const auto value_at = [&](C z, C teacher) {
    const C q = std::exp(z - g.log_sum);
    const C p = kHasTeacher ? std::exp(teacher - g.teacher_log_sum) : C{0};
    // q_factor q - p_factor p with the near-equal parts subtracted first.
    return (g.q_factor - g.p_factor) * q + g.p_factor * (q - p) - g.cap_factor * q * (z - g.mean);
  };
  C label_teacher = 0;
  if constexpr (kHasTeacher) label_teacher = load_scalar(row.teacher + g.label);
  const C at_label = value_at(label_z, label_teacher) - C{1};

  const auto log_sum = hn::Set(d, g.log_sum);
  const auto teacher_log_sum = hn::Set(d, g.teacher_log_sum);
  const auto mean = hn::Set(d, g.mean);
  const auto own_factor = hn::Set(d, g.q_factor - g.p_factor);
  const auto p_factor = hn::Set(d, g.p_factor);
  const auto cap_factor = hn::Set(d, g.cap_factor);
  for (int64_t i = 0; i < end; i += lanes) {
    const auto z = row.template at<kHasTeacher>(d, i);
    const auto q = hn::Exp(d, hn::Sub(z, log_sum));
    auto value = hn::Mul(q, hn::NegMulAdd(cap_factor, hn::Sub(z, mean), own_factor));
    if constexpr (kHasTeacher) {
      const auto p = hn::Exp(d, hn::Sub(row.teacher_at(d, i), teacher_log_sum));
      value = hn::MulAdd(p_factor, hn::Sub(q, p), value);
    }
    store_narrow(d, value, out + i);
  }
  for (int64_t i = end; i < width; ++i) {
    C teacher = 0;
    if constexpr (kHasTeacher) teacher = load_scalar(row.teacher + i);
    store_scalar<T>(value_at(row.template scalar<kHasTeacher>(i), teacher), out + i);
  }
  store_scalar<T>(at_label, out + g.label);
}

template <bool kHasTeacher, class T>
void head_row(const HeadRowsParams& params, int64_t r) {
  using C = typename Stored<T>::Compute;
  const int64_t width = params.vocab_size;
  T* stored = static_cast<T*>(params.logits) + r * width;
  const int64_t teacher_index = kHasTeacher ? params.teacher_rows[r] : 0;
  const T* teacher =
      kHasTeacher ? static_cast<const T*>(params.teacher_logits) + teacher_index * width : nullptr;
  const double teacher_log_sum = kHasTeacher ? params.teacher.log_sum[teacher_index] : 0;
  const LogitRow<T> row{stored, teacher};

  const auto k = static_cast<size_t>(params.top_k);
  std::vector<TopEntry<C>> top;
  Maximum<C> maximum;
  if (k > 1) {
    top = find_top<C>(
        width, k, [&](auto d, int64_t i) { return row.template at<kHasTeacher>(d, i); },
        [&](int64_t i) { return row.template scalar<kHasTeacher>(i); });
    maximum = {top[0].value, top[0].index};
  } else {
    maximum = find_maximum<kHasTeacher>(row, width);
    if (k == 1) top = {{maximum.value, maximum.index}};
  }
  const auto sums = sum_row<kHasTeacher>(row, width, maximum.value, teacher_log_sum);
  const int64_t label = params.labels[r];
  const double log_exp_sum = std::log(sums.exp_sum);
  const double max = static_cast<double>(maximum.value);
  const double mean_below = sums.exp_z_sum / sums.exp_sum;
  const bool is_correct = maximum.index == label;
  const double label_below = static_cast<double>(row.template scalar<kHasTeacher>(label)) - max;
  params.predicted[r] = maximum.index;
  params.ce[r] = log_exp_sum - label_below;
  params.label_probability[r] = std::exp(label_below - log_exp_sum);
  params.cap[r] = is_correct ? std::max(0.0, log_exp_sum - mean_below) : 0;
  params.kl[r] = 0;
  if constexpr (kHasTeacher) {
    // KL = log(1 + x) - sum p (z - t) with x = sum p (exp(z - t) - 1) when z and t nearly agree:
    // nothing of the size of the logits is left to cancel. Else x may overflow.
    const double x = sums.p_growth_sum;
    const double log_ratio =
        std::abs(x) < 0.5 ? std::log1p(x) : max + log_exp_sum - teacher_log_sum;
    params.kl[r] = std::max(0.0, log_ratio - sums.p_difference_sum);
  }
  for (size_t i = 0; i < k; ++i) {
    const auto place = static_cast<size_t>(r) * k + i;
    params.top_ids[place] = top[i].index;
    params.top_log_probs[place] = static_cast<double>(top[i].value) - max - log_exp_sum;
  }
  if (!params.needs_gradient) return;
  const RowGradient<C> gradient{
      .log_sum = static_cast<C>(max + log_exp_sum),
      .teacher_log_sum = static_cast<C>(teacher_log_sum),
      .mean = static_cast<C>(max + mean_below),
      .q_factor = static_cast<C>(1 + (kHasTeacher ? params.kl_weight : 0)),
      .p_factor = static_cast<C>(kHasTeacher ? params.kl_weight : 0),
      .cap_factor = static_cast<C>(is_correct ? params.cap_weight : 0),
      .label = label};
  write_gradient<kHasTeacher>(row, width, gradient, stored);
}

void run_teacher_row(const TeacherRowsParams& params, int64_t r) {
  switch (params.storage) {
    case Storage::kBF16:
      return teacher_row<BF16>(params, r);
    case Storage::kF32:
      return teacher_row<float>(params, r);
    case Storage::kF64:
      return teacher_row<double>(params, r);
  }
}

template <class T>
void run_typed_head_row(const HeadRowsParams& params, int64_t r) {
  params.teacher_logits != nullptr ? head_row<true, T>(params, r) : head_row<false, T>(params, r);
}

void run_head_row(const HeadRowsParams& params, int64_t r) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_typed_head_row<BF16>(params, r);
    case Storage::kF32:
      return run_typed_head_row<float>(params, r);
    case Storage::kF64:
      return run_typed_head_row<double>(params, r);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_teacher_row);
HWY_EXPORT(run_head_row);

void compute_teacher_rows(const TeacherRowsParams& params) {
  at::parallel_for(0, params.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      HWY_DYNAMIC_DISPATCH(run_teacher_row)(params, r);
  });
}

void compute_head_rows(const HeadRowsParams& params) {
  at::parallel_for(0, params.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      HWY_DYNAMIC_DISPATCH(run_head_row)(params, r);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
