// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/device.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

/// N elements per thread.
template <class T, int N, bool kIsGradient>
struct SwigluKernel {
  static constexpr int kThreads = 256;
  using C = Compute<T>;
  SwigluParams params;

  int64_t shared_bytes() const { return 0; }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t i = (block.index() * kThreads + block.thread()) * N;
    if (i >= params.count) return;
    const auto gates = load_vector<N>(static_cast<const T*>(params.gate) + i);
    const auto ups = load_vector<N>(static_cast<const T*>(params.up) + i);
    if constexpr (kIsGradient) {
      const auto upstreams = load_vector<N>(static_cast<const T*>(params.out_gradient) + i);
      Vector<T, N> gate_out, up_out;
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C gate = widen(gates.values[j]);
        const C upstream = widen(upstreams.values[j]);
        const C sigmoid = sigmoid_for<T>(gate);
        // silu'(x) = s (1 + x (1 - s))
        const C slope = sigmoid * (gate * (1 - sigmoid) + 1);
        gate_out.values[j] = narrow<T>(upstream * widen(ups.values[j]) * slope);
        up_out.values[j] = narrow<T>(upstream * (gate * sigmoid));
      }
      store_vector(static_cast<T*>(params.gate_gradient) + i, gate_out);
      store_vector(static_cast<T*>(params.up_gradient) + i, up_out);
    } else {
      Vector<T, N> out;
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C gate = widen(gates.values[j]);
        // silu is rounded before `up` multiplies it, as the models do.
        out.values[j] = narrow<T>(round_to<T>(gate * sigmoid_for<T>(gate)) * widen(ups.values[j]));
      }
      store_vector(static_cast<T*>(params.out) + i, out);
    }
  }
};

template <class T, bool kIsGradient, class Machine>
void launch_swiglu(Machine& machine, const SwigluParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  const bool is_wide = has_wide_rows<T>(
      params.count, {params.gate, params.up, params.out, params.out_gradient, params.gate_gradient,
                     params.up_gradient});
  const auto launch = [&](auto kernel, int64_t per_thread) {
    machine.launch(count_blocks(params.count, kernel.kThreads * per_thread), kernel);
  };
  is_wide ? launch(SwigluKernel<T, kWide, kIsGradient>{params}, kWide)
          : launch(SwigluKernel<T, 1, kIsGradient>{params}, 1);
}

template <class T, class Machine>
void run_swiglu_of(Machine& machine, const SwigluParams& params) {
  params.out_gradient != nullptr ? launch_swiglu<T, true>(machine, params)
                                 : launch_swiglu<T, false>(machine, params);
}

template <class Machine>
void run_swiglu(Machine& machine, const SwigluParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_swiglu_of<BF16>(machine, params);
    case Storage::kF32:
      return run_swiglu_of<float>(machine, params);
    case Storage::kF64:
      return run_swiglu_of<double>(machine, params);
  }
}

}  // namespace draftsmith::ops::cuda
