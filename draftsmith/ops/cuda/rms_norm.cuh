// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/cuda/reduce.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

constexpr int kNormThreads = 256;
constexpr int64_t kWidestOfAWarp = 1024;  // rows up to this width get a warp each, others a block

/// The sum of a row's values, in every thread of its warp or block, in a fixed order.
template <bool kOfWarp, class Block, class Scratch, class C>
DS_DEVICE C sum_over_row(Block& block, const Scratch& scratch, C value) {
  if constexpr (kOfWarp) {
    return reduce_lanes(block, value, Sum());
  } else {
    return reduce_block<kNormThreads / kWarp>(block, scratch, value, Sum());
  }
}

/// kOfWarp: a warp per row, else a block. N elements a thread at a time.
template <class T, int N, bool kOfWarp>
struct RmsNormKernel {
  static constexpr int kThreads = kNormThreads;
  static constexpr int kRowsPerBlock = kOfWarp ? kThreads / kWarp : 1;
  static constexpr int kRowThreads = kThreads / kRowsPerBlock;
  using C = Compute<T>;
  RmsNormParams params;

  int64_t shared_bytes() const { return shared_size<C>(kThreads / kWarp + 1); }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const auto scratch = block.template shared<C>(kThreads / kWarp + 1);
    const int64_t r = block.index() * kRowsPerBlock + (kOfWarp ? block.warp() : 0);
    if (r >= params.rows) return;  // a whole warp
    const int64_t first = static_cast<int64_t>(kOfWarp ? block.lane() : block.thread()) * N;
    const int64_t width = params.width;
    const T* x = static_cast<const T*>(params.x) + r * width;
    const T* weight = static_cast<const T*>(params.weight);
    const T* gate =
        params.gate == nullptr ? nullptr : static_cast<const T*>(params.gate) + r * width;
    T* out = static_cast<T*>(params.out) + r * width;
    C squares = 0;
    for (int64_t i = first; i < width; i += kRowThreads * N) {
      const auto values = load_vector<N>(x + i);
      DS_UNROLL
      for (int j = 0; j < N; ++j)
        squares += widen(values.values[j]) * widen(values.values[j]);
    }
    const C sum = sum_over_row<kOfWarp>(block, scratch, squares);
    const C scale = 1 / std::sqrt(sum / static_cast<C>(width) + static_cast<C>(params.eps));
    if (params.scale != nullptr && first == 0) params.scale[r] = static_cast<double>(scale);
    for (int64_t i = first; i < width; i += kRowThreads * N) {
      const auto values = load_vector<N>(x + i);
      const auto weights = load_vector<N>(weight + i);
      Vector<T, N> gates = {};
      if (gate != nullptr) gates = load_vector<N>(gate + i);
      Vector<T, N> result;
      DS_UNROLL
      for (int j = 0; j < N; ++j)
        result.values[j] =
            norm(widen(values.values[j]) * scale, weights.values[j], gates.values[j]);
      store_vector(out + i, result);
    }
  }

 private:
  DS_DEVICE T norm(C normed, T weight, T gate) const {
    if (params.is_zero_centred) return narrow<T>(normed * widen(weight) + normed);
    // The normed value is rounded before the weight multiplies it, as the models do.
    C value = round_to<T>(normed) * widen(weight);
    if (params.gate != nullptr) {
      const C g = widen(gate);
      value = round_to<T>(value) * (g * sigmoid_for<T>(g));
    }
    return narrow<T>(value);
  }
};

/// A block takes some rows; its sum for the weight's gradient goes to a row of `partial`.
template <class T, int N, bool kOfWarp>
struct RmsNormGradientKernel {
  static constexpr int kThreads = kNormThreads;
  static constexpr int kGroups = kOfWarp ? kThreads / kWarp : 1;  // rows at a time
  static constexpr int kRowThreads = kThreads / kGroups;
  using C = Compute<T>;
  RmsNormGradientParams params;
  int64_t rows_per_block;
  double* partial;  // [blocks, width]

  int64_t shared_bytes() const {
    return shared_size<C>(kThreads / kWarp + 1) + shared_size<C>(kGroups * params.width);
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t width = params.width;
    const auto scratch = block.template shared<C>(kThreads / kWarp + 1);
    const auto sums = block.template shared<C>(kGroups * width);  // each row of it: one warp's
    const int64_t group = kOfWarp ? block.warp() : 0;
    const auto own_sums = sums.part(group * width, width);
    const int64_t first = static_cast<int64_t>(kOfWarp ? block.lane() : block.thread()) * N;
    for (int64_t i = first; i < width; i += kRowThreads * N)
      for (int j = 0; j < N; ++j)
        own_sums.store(i + j, 0);
    const int64_t begin = block.index() * rows_per_block;
    const int64_t end = begin + rows_per_block < params.rows ? begin + rows_per_block : params.rows;
    for (int64_t r = begin + group; r < end; r += kGroups)
      add_row(block, scratch, own_sums, first, r);
    block.sync();
    for (int64_t i = block.thread(); i < width; i += kThreads) {
      double sum = 0;
      for (int g = 0; g < kGroups; ++g)
        sum += static_cast<double>(sums.load(g * width + i));
      partial[block.index() * width + i] = sum;
    }
  }

 private:
  template <class Block, class Scratch, class Sums>
  DS_DEVICE void
  add_row(Block& block, const Scratch& scratch, const Sums& sums, int64_t first, int64_t r) const {
    const int64_t width = params.width;
    const T* x = static_cast<const T*>(params.x) + r * width;
    const T* g = static_cast<const T*>(params.out_gradient) + r * width;
    const T* weight = static_cast<const T*>(params.weight);
    T* out = static_cast<T*>(params.x_gradient) + r * width;
    const C scale = static_cast<C>(params.scale[r]);
    C dot = 0;  // of the normed row and its gradient
    for (int64_t i = first; i < width; i += kRowThreads * N) {
      const auto values = load_vector<N>(x + i);
      const auto gradients = load_vector<N>(g + i);
      const auto weights = load_vector<N>(weight + i);
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C normed = widen(values.values[j]) * scale;
        const C gradient = widen(gradients.values[j]);
        dot += gradient * widen(weights.values[j]) * normed;
        sums.store(i + j, sums.load(i + j) + gradient * round_to<T>(normed));
      }
    }
    const C mean = sum_over_row<kOfWarp>(block, scratch, dot) / static_cast<C>(width);
    for (int64_t i = first; i < width; i += kRowThreads * N) {
      const auto values = load_vector<N>(x + i);
      const auto gradients = load_vector<N>(g + i);
      const auto weights = load_vector<N>(weight + i);
      Vector<T, N> result;
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        const C inner = widen(gradients.values[j]) * widen(weights.values[j]);
        const C normed = widen(values.values[j]) * scale;
        result.values[j] = narrow<T>(scale * (inner - normed * mean));
      }
      store_vector(out + i, result);
    }
  }
};

/// Sums of columns, row after row.
struct ColumnSumKernel {
  static constexpr int kThreads = 256;
  const double* values;  // [rows, width]
  int64_t rows;
  int64_t width;
  double* out;  // [width]

  int64_t shared_bytes() const { return 0; }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t i = block.index() * kThreads + block.thread();
    if (i >= width) return;
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      sum += values[r * width + i];
    out[i] = sum;
  }
};

/// How the rows of a gradient are cut: a function of the shape, so that sums have one order.
struct NormBlocks {
  int64_t rows_per_block;
  int64_t blocks;
};
inline NormBlocks cut_norm_rows(int64_t rows) {
  constexpr int64_t kFewest = 64;  // rows that are worth a row of partial sums
  constexpr int64_t kMost = 1024;  // blocks
  const int64_t even = count_blocks(rows, kMost);
  const int64_t per_block = even < kFewest ? kFewest : even;
  return {per_block, count_blocks(rows, per_block)};
}

template <class T, class Machine>
void run_rms_norm_of(Machine& machine, const RmsNormParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  const bool is_wide =
      has_wide_rows<T>(params.width, {params.x, params.weight, params.gate, params.out});
  const auto launch = [&](auto kernel) {
    machine.launch(count_blocks(params.rows, kernel.kRowsPerBlock), kernel);
  };
  if (params.width <= kWidestOfAWarp) {
    is_wide ? launch(RmsNormKernel<T, kWide, true>{params})
            : launch(RmsNormKernel<T, 1, true>{params});
  } else {
    is_wide ? launch(RmsNormKernel<T, kWide, false>{params})
            : launch(RmsNormKernel<T, 1, false>{params});
  }
}

template <class Machine>
void run_rms_norm(Machine& machine, const RmsNormParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_rms_norm_of<BF16>(machine, params);
    case Storage::kF32:
      return run_rms_norm_of<float>(machine, params);
    case Storage::kF64:
      return run_rms_norm_of<double>(machine, params);
  }
}

/// Errors: ShapeError if a row's sums do not fit the shared memory of every GPU.
inline void check_norm_width(int64_t width, int64_t shared_bytes) {
  if (shared_bytes <= kMaxSharedBytes) return;
  throw ShapeError(
      {.what = "rms_norm",
       .expected = "rows whose gradient takes at most " + std::to_string(kMaxSharedBytes) +
                   " bytes of a GPU's shared memory",
       .got = std::to_string(shared_bytes) + " for rows of " + std::to_string(width)});
}

template <class T, class Machine>
void run_rms_norm_gradient_of(
    Machine& machine,
    const RmsNormGradientParams& params,
    double* partial) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  const bool is_wide = has_wide_rows<T>(
      params.width, {params.x, params.weight, params.out_gradient, params.x_gradient});
  const auto cut = cut_norm_rows(params.rows);
  const auto launch = [&](const auto& kernel) {
    check_norm_width(params.width, kernel.shared_bytes());
    machine.launch(cut.blocks, kernel);
  };
  const int64_t rows = cut.rows_per_block;
  if (params.width <= kWidestOfAWarp) {
    is_wide ? launch(RmsNormGradientKernel<T, kWide, true>{params, rows, partial})
            : launch(RmsNormGradientKernel<T, 1, true>{params, rows, partial});
  } else {
    is_wide ? launch(RmsNormGradientKernel<T, kWide, false>{params, rows, partial})
            : launch(RmsNormGradientKernel<T, 1, false>{params, rows, partial});
  }
  machine.launch(
      count_blocks(params.width, ColumnSumKernel::kThreads),
      ColumnSumKernel{partial, cut.blocks, params.width, params.weight_gradient});
}

template <class Machine>
void run_rms_norm_gradient(
    Machine& machine,
    const RmsNormGradientParams& params,
    double* partial) {  // [blocks of cut_norm_rows, width]
  switch (params.storage) {
    case Storage::kBF16:
      return run_rms_norm_gradient_of<BF16>(machine, params, partial);
    case Storage::kF32:
      return run_rms_norm_gradient_of<float>(machine, params, partial);
    case Storage::kF64:
      return run_rms_norm_gradient_of<double>(machine, params, partial);
  }
}

}  // namespace draftsmith::ops::cuda
