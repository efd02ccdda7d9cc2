// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>

#include "draftsmith/ops/cuda/reduce.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

/// A row of logits z. With a teacher row t it is stored as z - t.
template <class T, bool kHasTeacher>
struct LogitRow {
  using C = Compute<T>;
  const T* stored;   // z, or z - t
  const T* teacher;  // t, or null

  DS_DEVICE C at(int64_t i) const {
    C z = widen(stored[i]);
    if constexpr (kHasTeacher) z += widen(teacher[i]);
    return z;
  }
};

/// Some elements of a row, in the compute type.
template <class C, int N>
struct Logits {
  C z[N];
  C difference[N];  // z - t; only with a teacher
  C teacher[N];     // t; only with a teacher
};

template <int N, class T, bool kHasTeacher>
DS_DEVICE Logits<Compute<T>, N> load_logits(const LogitRow<T, kHasTeacher>& row, int64_t i) {
  Logits<Compute<T>, N> logits = {};
  const auto stored = load_vector<N>(row.stored + i);
  if constexpr (kHasTeacher) {
    const auto teacher = load_vector<N>(row.teacher + i);
    DS_UNROLL
    for (int j = 0; j < N; ++j) {
      logits.difference[j] = widen(stored.values[j]);
      logits.teacher[j] = widen(teacher.values[j]);
      logits.z[j] = logits.difference[j] + logits.teacher[j];
    }
  } else {
    DS_UNROLL
    for (int j = 0; j < N; ++j)
      logits.z[j] = widen(stored.values[j]);
  }
  return logits;
}

template <class C>
constexpr C lowest() {
  return sizeof(C) == sizeof(float) ? static_cast<C>(-FLT_MAX) : static_cast<C>(-DBL_MAX);
}

/// Sums over a row that all its terms follow from.
template <class C>
struct RowSums {
  C max = lowest<C>();
  int64_t argmax = INT64_MAX;   // where the largest stands first
  double exp_sum = 0;           // sum exp(z - max)
  double exp_z_sum = 0;         // sum exp(z - max) (z - max)
  double p_growth_sum = 0;      // sum p (exp(z - t) - 1), with a teacher
  double p_difference_sum = 0;  // sum p (z - t), with a teacher

  /// The same sums below another largest.
  DS_DEVICE void move_max(C to) {
    const auto step = static_cast<double>(max) - static_cast<double>(to);
    const double factor = step == 0 ? 1.0 : static_cast<double>(std::exp(static_cast<C>(step)));
    exp_z_sum = factor == 0 ? 0.0 : factor * (exp_z_sum + step * exp_sum);
    exp_sum *= factor;
    max = to;
  }
};

struct JoinRowSums {
  template <class C>
  DS_DEVICE RowSums<C> operator()(RowSums<C> a, RowSums<C> b) const {
    const bool is_first = a.max > b.max || (a.max == b.max && a.argmax < b.argmax);
    const int64_t argmax = is_first ? a.argmax : b.argmax;
    const C max = is_first ? a.max : b.max;
    a.move_max(max);
    b.move_max(max);
    a.argmax = argmax;
    a.exp_sum += b.exp_sum;
    a.exp_z_sum += b.exp_z_sum;
    a.p_growth_sum += b.p_growth_sum;
    a.p_difference_sum += b.p_difference_sum;
    return a;
  }
};

constexpr int kStretch = 2048;  // elements that a thread sums in the compute type

/// The sums of a row over a block of kThreads, in one pass, N elements a thread at a time.
template <int N, int kThreads, class Block, class Scratch, class T, bool kHasTeacher>
DS_DEVICE RowSums<Compute<T>> sum_row(
    Block& block,
    const Scratch& scratch,  // kThreads / 32 + 1 RowSums
    const LogitRow<T, kHasTeacher>& row,
    int64_t width,
    double teacher_log_sum) {
  using C = Compute<T>;
  RowSums<C> sums;
  const auto teacher_top = static_cast<C>(teacher_log_sum);
  C ratio = 0;  // exp(max - teacher_log_sum), so that p exp(z - t) = exp(z - max) ratio
  int64_t i = static_cast<int64_t>(block.thread()) * N;
  while (i < width) {
    C exp_sum = 0, exp_z_sum = 0, growth_sum = 0, difference_sum = 0;
    DS_UNROLL_BY(2)
    for (int n = 0; n < kStretch / N && i < width; ++n, i += kThreads * N) {
      const auto logits = load_logits<N>(row, i);
      C top = logits.z[0];
      DS_UNROLL
      for (int j = 1; j < N; ++j)
        top = logits.z[j] > top ? logits.z[j] : top;
      if (top > sums.max) {  // seldom after the first elements
        sums.exp_sum += static_cast<double>(exp_sum);
        sums.exp_z_sum += static_cast<double>(exp_z_sum);
        exp_sum = exp_z_sum = 0;
        sums.move_max(top);
        int first = 0;
        DS_UNROLL
        for (int j = N - 1; j >= 0; --j)
          first = logits.z[j] == top ? j : first;
        sums.argmax = i + first;
        if constexpr (kHasTeacher) ratio = std::exp(top - teacher_top);
      }
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C below = logits.z[j] - sums.max;
        const C e = exp_for<T>(below);
        exp_sum += e;
        exp_z_sum += e * below;
        if constexpr (kHasTeacher) {
          const C p = exp_for<T>(logits.teacher[j] - teacher_top);
          growth_sum += e * ratio - p;
          difference_sum += p * logits.difference[j];
        }
      }
    }
    sums.exp_sum += static_cast<double>(exp_sum);
    sums.exp_z_sum += static_cast<double>(exp_z_sum);
    sums.p_growth_sum += static_cast<double>(growth_sum);
    sums.p_difference_sum += static_cast<double>(difference_sum);
  }
  auto all = reduce_block<kThreads / kWarp>(block, scratch, sums, JoinRowSums());
  if (all.argmax == INT64_MAX) all.argmax = 0;  // no element is a finite number: as on the CPU
  return all;
}

}  // namespace draftsmith::ops::cuda
