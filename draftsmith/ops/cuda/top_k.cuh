// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/top_entries.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

/// A block per row.
template <class T, int N>
struct TopKKernel {
  static constexpr int kThreads = 256;
  using C = Compute<T>;
  TopKParams params;

  int64_t shared_bytes() const {
    return shared_size<RowSums<C>>(kThreads / kWarp + 1) + top_shared_bytes<C>();
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t width = params.vocab_size;
    const LogitRow<T, false> row{
        static_cast<const T*>(params.logits) + block.index() * width, nullptr};
    const auto scratch = block.template shared<RowSums<C>>(kThreads / kWarp + 1);
    const auto sums = sum_row<N, kThreads>(block, scratch, row, width, 0);
    const double log_sum = static_cast<double>(sums.max) + std::log(sums.exp_sum);
    const auto top = find_top<N, kThreads>(block, row, width, params.k);
    for (int64_t i = block.thread(); i < params.k; i += kThreads) {
      const auto entry = top.load(i);
      params.ids[block.index() * params.k + i] = entry.index;
      params.log_probs[block.index() * params.k + i] =
          static_cast<float>(static_cast<double>(entry.value) - log_sum);
    }
  }
};

template <class T, class Machine>
void run_top_k_of(Machine& machine, const TopKParams& params) {
  constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(T));
  if (has_wide_rows<T>(params.vocab_size, {params.logits})) {
    machine.launch(params.rows, TopKKernel<T, kWide>{params});
  } else {
    machine.launch(params.rows, TopKKernel<T, 1>{params});
  }
}

/// k <= kMaxTop; the storage is not kF64.
template <class Machine>
void run_top_k(Machine& machine, const TopKParams& params) {
  params.storage == Storage::kBF16 ? run_top_k_of<BF16>(machine, params)
                                   : run_top_k_of<float>(machine, params);
}

}  // namespace draftsmith::ops::cuda
