// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/cuda/device.cuh"

namespace draftsmith::ops::cuda {

/// The delta rule token by token, or node by node of a tree, depth first: a warp per row, value
/// head and 32 columns of the state, a column in the registers of each lane. Sums depend on the
/// token and the state before it alone, so a node has the bits that its path gives token by token.
template <class T, int kKeyWidth>
struct DeltaWalkKernel {
  static constexpr int kThreads = 64;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int Ek = kKeyWidth;
  static constexpr int kPart = Ek / kWarp;  // of keys and queries, a lane's
  DeltaWalkParams params;

  int64_t num_tasks() const { return params.B * params.Hv * (params.Ev / kWarp); }
  int64_t shared_bytes() const { return kWarps * 4 * Ek * static_cast<int64_t>(sizeof(float)); }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const auto shared = block.template shared<float>(kWarps * 4 * Ek);
    const auto rows = shared.part(block.warp() * 4 * Ek, 4 * Ek);  // key, query of two tokens
    const int64_t task = block.index() * kWarps + block.warp();
    if (task >= num_tasks_on_device()) return;  // a whole warp
    const int64_t groups = params.Ev / kWarp;
    const Place place{
        task / groups / params.Hv, task / groups % params.Hv, task % groups * kWarp + block.lane()};

    float* root = params.state + (place.b * params.Hv + place.h) * Ek * params.Ev + place.column;
    float state[Ek];
    load_state(root, state);
    const int count = params.counts[place.b];
    Token next = load(block, place, 0, count);
    for (int i = 0; i < count; ++i) {
      const Token token = next;
      next = load(block, place, i + 1, count);
      const auto key = rows.part(i % 2 * 2 * Ek, Ek);
      const auto query = rows.part((i % 2 * 2 + 1) * Ek, Ek);
      store_normed(block, key, token.key, 1);
      store_normed(block, query, token.query, 1 / std::sqrt(static_cast<float>(Ek)));
      block.sync_warp();  // the token before the last one is done with: two take turns
      if (params.steps != nullptr && token.step.from != kPreviousState)
        load_state(token.step.from == kRootState ? root : slot(place, token.step.from), state);
      const float read = step(block, key, query, token, state);
      static_cast<T*>(params.out)[place.token(params, token.step.node) * params.Ev + place.column] =
          narrow<T>(read);
      if (params.steps != nullptr && token.step.to != kNowhere)
        store_state(state, slot(place, token.step.to));
    }
    if (params.steps == nullptr) store_state(state, root);
  }

 private:
  struct Place {
    int64_t b, h, column;
    DS_DEVICE int64_t token(const DeltaWalkParams& params, int node) const {  // [B, T, Hv]
      return (b * params.T + node) * params.Hv + h;
    }
  };

  struct Token {
    TreeStep step;
    Vector<T, kPart> key, query;
    float value, decay, beta;
  };

  DS_DEVICE int64_t num_tasks_on_device() const {
    return params.B * params.Hv * (params.Ev / kWarp);
  }

  /// Token i of the walk; zeros past its end.
  template <class Block>
  DS_DEVICE Token load(Block& block, const Place& place, int i, int count) const {
    Token token = {};
    if (i >= count) return token;
    token.step = {i, kPreviousState, kNowhere};
    if (params.steps != nullptr) token.step = params.steps[place.b * params.T + i];
    const int64_t key_width = params.Hk * Ek;
    const int64_t width = 2 * key_width + params.Hv * params.Ev;
    const T* mixed =
        static_cast<const T*>(params.mixed) + (place.b * params.T + token.step.node) * width;
    const T* query = mixed + place.h / (params.Hv / params.Hk) * Ek + block.lane() * kPart;
    token.query = load_vector<kPart>(query);
    token.key = load_vector<kPart>(query + key_width);
    token.value = widen(mixed[2 * key_width + place.h * params.Ev + place.column]);
    token.decay = params.decay[place.token(params, token.step.node)];
    token.beta = params.beta[place.token(params, token.step.node)];
    return token;
  }

  /// Divides a row, whose parts the lanes hold, by its norm.
  template <class Block, class Row>
  DS_DEVICE static void
  store_normed(Block& block, const Row& row, const Vector<T, kPart>& part, float scale) {
    float squares = 0;
    DS_UNROLL
    for (int i = 0; i < kPart; ++i)
      squares += widen(part.values[i]) * widen(part.values[i]);
    DS_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2)
      squares += block.shuffle_xor(squares, mask);
    scale /= std::sqrt(squares + 1e-6F);
    DS_UNROLL
    for (int i = 0; i < kPart; ++i)
      row.store(block.lane() * kPart + i, widen(part.values[i]) * scale);
  }

  /// Four sums side by side, because one alone would wait for itself.
  template <class Block, class Row>
  DS_DEVICE static float
  step(Block& block, const Row& key, const Row& query, const Token& token, float (&state)[Ek]) {
    const float keep = std::exp(token.decay);
    float recalled[4] = {};
    DS_UNROLL
    for (int i = 0; i < Ek; i += 4) {
      const auto k = key.load_vector(i);
      DS_UNROLL
      for (int j = 0; j < 4; ++j) {
        state[i + j] *= keep;
        recalled[j] += state[i + j] * k.values[j];
      }
    }
    const float written =
        token.beta * (token.value - ((recalled[0] + recalled[1]) + (recalled[2] + recalled[3])));
    // Else the compiler keeps the keys, for which there are no registers beside the state.
    block.sync_warp();
    float read[4] = {};
    DS_UNROLL
    for (int i = 0; i < Ek; i += 4) {
      const auto k = key.load_vector(i);
      const auto q = query.load_vector(i);
      DS_UNROLL
      for (int j = 0; j < 4; ++j) {
        state[i + j] += written * k.values[j];
        read[j] += state[i + j] * q.values[j];
      }
    }
    return (read[0] + read[1]) + (read[2] + read[3]);
  }

  DS_DEVICE float* slot(const Place& place, int64_t number) const {
    return params.slots +
           ((place.b * params.num_slots + number) * params.Hv + place.h) * Ek * params.Ev +
           place.column;
  }
  /// Step by step: products i x Ev would be kept for all tokens, in more registers than there are.
  DS_DEVICE void load_state(const float* from, float (&state)[Ek]) const {
    DS_UNROLL
    for (int i = 0; i < Ek; ++i, from += params.Ev)
      state[i] = *from;
  }
  DS_DEVICE void store_state(const float (&state)[Ek], float* to) const {
    DS_UNROLL
    for (int i = 0; i < Ek; ++i, to += params.Ev)
      *to = state[i];
  }
};

template <class T, class Machine>
void run_delta_walk_of(Machine& machine, const DeltaWalkParams& params) {
  const auto launch = [&](const auto& kernel) {
    machine.launch(count_blocks(kernel.num_tasks(), kernel.kWarps), kernel);
  };
  if (params.Ek == 64) launch(DeltaWalkKernel<T, 64>{params});
  if (params.Ek == 128) launch(DeltaWalkKernel<T, 128>{params});
}

template <class Machine>
void run_delta_walk(Machine& machine, const DeltaWalkParams& params) {
  if (params.storage == Storage::kBF16) run_delta_walk_of<BF16>(machine, params);
  if (params.storage == Storage::kF32) run_delta_walk_of<float>(machine, params);
}

}  // namespace draftsmith::ops::cuda
