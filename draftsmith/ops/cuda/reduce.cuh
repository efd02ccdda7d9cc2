// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/device.cuh"

namespace draftsmith::ops::cuda {

struct Sum {
  template <class T>
  DS_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

/// `join` of the values of each group of `kLanes` lanes that follow each other, a power of two.
template <int kLanes = kWarp, class Block, class T, class Join>
DS_DEVICE T reduce_lanes(Block& block, T value, const Join& join) {
  static_assert((kLanes & (kLanes - 1)) == 0 && kLanes <= kWarp);
  DS_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2)
    value = join(value, block.shuffle_xor(value, mask));
  return value;
}

/// `join` of the values of all threads, in an order that depends on kWarps only; every thread gets
/// the same bits. `scratch` holds kWarps + 1 values.
template <int kWarps, class Block, class Scratch, class T, class Join>
DS_DEVICE T reduce_block(Block& block, const Scratch& scratch, T value, const Join& join) {
  value = reduce_lanes(block, value, join);
  if (block.lane() == 0) scratch.store(block.warp(), value);
  block.sync();
  if (block.warp() == 0) {
    value = reduce_lanes<kWarps>(block, scratch.load(block.lane() % kWarps), join);
    if (block.lane() == 0) scratch.store(kWarps, value);
  }
  block.sync();
  return scratch.load(kWarps);
}

}  // namespace draftsmith::ops::cuda
