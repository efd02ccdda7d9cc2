// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/device.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

/// Threads go over groups of N pairs of every head, then over what passes through.
template <class T, int N>
struct RotaryKernel {
  static constexpr int kThreads = 256;
  using C = Compute<T>;
  RotaryParams params;
  int64_t groups_per_head;  // of N pairs or N elements that pass through

  int64_t shared_bytes() const { return 0; }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t item = block.index() * kThreads + block.thread();
    const int64_t head = item / groups_per_head;  // (b S + s) H + h
    if (head >= params.B * params.S * params.H) return;
    const int64_t j = item % groups_per_head * N;
    const int64_t half = params.rotated / 2;
    const T* x = static_cast<const T*>(params.x) + head * params.E;
    T* out = static_cast<T*>(params.out) + head * params.E;
    if (j >= half) {
      const int64_t i = half + j;
      store_vector(out + i, load_vector<N>(x + i));
      return;
    }
    const int64_t position = head / params.H;
    const int64_t angle_row = params.has_batch_angles ? position : position % params.S;
    const auto cos = load_vector<N>(static_cast<const T*>(params.cos) + angle_row * half + j);
    const auto sin = load_vector<N>(static_cast<const T*>(params.sin) + angle_row * half + j);
    const auto low = load_vector<N>(x + j);
    const auto high = load_vector<N>(x + half + j);
    Vector<T, N> low_out, high_out;
    DS_UNROLL
    for (int n = 0; n < N; ++n) {
      const C c = widen(cos.values[n]);
      const C s = params.is_inverse ? -widen(sin.values[n]) : widen(sin.values[n]);
      const C a = widen(low.values[n]);
      const C b = widen(high.values[n]);
      // Products are rounded before they are added, as the models do.
      low_out.values[n] = narrow<T>(round_to<T>(a * c) - round_to<T>(b * s));
      high_out.values[n] = narrow<T>(round_to<T>(a * s) + round_to<T>(b * c));
    }
    store_vector(out + j, low_out);
    store_vector(out + half + j, high_out);
  }
};

template <class T, int N, class Machine>
void launch_rotary(Machine& machine, const RotaryParams& params) {
  using Kernel = RotaryKernel<T, N>;
  const int64_t groups = (params.rotated / 2 + params.E - params.rotated) / N;
  const int64_t items = params.B * params.S * params.H * groups;
  machine.launch(count_blocks(items, Kernel::kThreads), Kernel{params, groups});
}

template <class T, class Machine>
void run_rotary_of(Machine& machine, const RotaryParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  const bool is_wide = has_wide_rows<T>(params.rotated / 2, {params.cos, params.sin}) &&
                       has_wide_rows<T>(params.E, {params.x, params.out});
  is_wide ? launch_rotary<T, kWide>(machine, params) : launch_rotary<T, 1>(machine, params);
}

template <class Machine>
void run_rotary(Machine& machine, const RotaryParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_rotary_of<BF16>(machine, params);
    case Storage::kF32:
      return run_rotary_of<float>(machine, params);
    case Storage::kF64:
      return run_rotary_of<double>(machine, params);
  }
}

}  // namespace draftsmith::ops::cuda
