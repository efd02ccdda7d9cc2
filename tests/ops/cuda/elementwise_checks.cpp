// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "draftsmith/ops/storage.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

constexpr torch::ScalarType kDtypes[] = {torch::kBFloat16, torch::kFloat, torch::kDouble};

struct Rotation {
  int64_t E;
  int64_t rotated;
  bool has_batch_angles;
  bool is_inverse;
};

Tensor
rotate(KernelPlace& place, const Tensor& all, const Tensor& all_angles, const Rotation& rotation) {
  const auto x = all.to(place.device());
  const auto cos = all_angles.cos().to(all.scalar_type()).to(place.device());
  const auto sin = all_angles.sin().to(all.scalar_type()).to(place.device());
  auto out = torch::full_like(x, 99);
  place.run(ops::RotaryParams{
      .storage = ops::storage_of(x),
      .x = x.const_data_ptr(),
      .cos = cos.const_data_ptr(),
      .sin = sin.const_data_ptr(),
      .B = x.size(0),
      .S = x.size(1),
      .H = x.size(2),
      .E = x.size(3),
      .rotated = rotation.rotated,
      .has_batch_angles = rotation.has_batch_angles,
      .is_inverse = rotation.is_inverse,
      .out = out.data_ptr()});
  return out;
}

void check_rotary(KernelPlace& place) {
  CpuPlace cpu;
  for (const auto dtype : kDtypes) {
    for (const Rotation& rotation :
         {Rotation{64, 64, true, false}, {64, 64, false, true}, {96, 64, true, true}}) {
      const auto x = random_normal({2, 5, 3, rotation.E}, 1).to(dtype);
      const auto angles =
          3 * random_normal({rotation.has_batch_angles ? 2 : 1, 5, rotation.rotated / 2}, 2);
      const auto got = rotate(place, x, angles, rotation);
      const auto wanted = rotate(cpu, x, angles, rotation);
      const auto what =
          fmt::format("{} E={} R={}", c10::toString(dtype), rotation.E, rotation.rotated);
      // Each result is a sum of two rounded products of about size 1.
      require_close(got, wanted, rounding_of(dtype), dtype == torch::kBFloat16 ? 0.01 : 1e-6, what);
      require_roundings(got, wanted, what);
    }
  }
}

/// Against the definition, for widths that no vector fits.
void check_odd_rotary(KernelPlace& place) {
  const Rotation rotation{11, 6, true, false};
  const auto x = random_normal({2, 3, 2, 11}, 1);
  const auto angles = random_normal({2, 3, 3}, 2);
  const auto cos = angles.cos().unsqueeze(2), sin = angles.sin().unsqueeze(2);
  const auto low = x.slice(3, 0, 3), high = x.slice(3, 3, 6);
  const auto wanted =
      torch::cat({low * cos - high * sin, low * sin + high * cos, x.slice(3, 6, 11)}, 3);
  require_close(rotate(place, x, angles, rotation), wanted, 1e-14, 1e-14, "odd widths");
}

struct Swiglu {
  Tensor out, gate_gradient, up_gradient;
};

Swiglu run(KernelPlace& place, const Tensor& gates, const Tensor& ups, const Tensor& upstreams) {
  const auto gate = gates.to(place.device()), up = ups.to(place.device());
  const auto upstream = upstreams.to(place.device());
  Swiglu result{torch::full_like(gate, 99), torch::full_like(gate, 99), torch::full_like(up, 99)};
  ops::SwigluParams params{
      .storage = ops::storage_of(gate),
      .gate = gate.const_data_ptr(),
      .up = up.const_data_ptr(),
      .count = gate.numel(),
      .out = result.out.data_ptr()};
  place.run(params);
  params.out_gradient = upstream.const_data_ptr();
  params.gate_gradient = result.gate_gradient.data_ptr();
  params.up_gradient = result.up_gradient.data_ptr();
  place.run(params);
  return result;
}

void check_swiglu(KernelPlace& place) {
  CpuPlace cpu;
  for (const auto dtype : kDtypes) {
    for (const int64_t count : {7, 1000, 4096}) {
      auto gate = (8 * random_normal({count}, 1)).to(dtype);
      gate.slice(0, 0, 4).copy_(torch::tensor({-1e4, -87.5, 1e4, 0.0}));
      const auto up = random_normal({count}, 2).to(dtype);
      const auto upstream = random_normal({count}, 3).to(dtype);
      const auto got = run(place, gate, up, upstream);
      const auto wanted = run(cpu, gate, up, upstream);
      const auto what = fmt::format("{} count {}", c10::toString(dtype), count);
      // silu'(x) passes zero near -1.28, where its terms of size 1 cancel.
      const double absolute = dtype == torch::kDouble ? 1e-12 : 1e-5;
      require_close(got.out, wanted.out, 2 * rounding_of(dtype), 1e-30, what);
      require_roundings(got.out, wanted.out, what);
      require_close(
          got.gate_gradient, wanted.gate_gradient, rounding_of(dtype), absolute, what + " gate");
      require_close(got.up_gradient, wanted.up_gradient, rounding_of(dtype), 1e-30, what + " up");
    }
  }
}

}  // namespace

std::vector<KernelCheck> elementwise_checks() {
  return {
      {"RotaryTurnsAsTheCpuDoes", check_rotary},
      {"RotaryTurnsOddWidths", check_odd_rotary},
      {"SwigluHasValuesAndGradientsOfTheCpu", check_swiglu}};
}

}  // namespace draftsmith::testing
