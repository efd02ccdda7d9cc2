// SPDX-License-Identifier: Apache-2.0
#include "tests/train/step_checks.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "draftsmith/pipeline/handoff.h"
#include "draftsmith/train/step_graphs.h"

#include "bench/shaped_run.h"

namespace draftsmith::testing {
namespace {

using bench::ShapedRun;
using torch::Tensor;

/// Errors: std::runtime_error unless the norm of the difference is at most `tolerance` of that of
/// `wanted`.
void require_near(
    const Tensor& got,
    const Tensor& wanted,
    double tolerance,
    const std::string& what) {
  const auto exact = wanted.detach().to(torch::kCPU, torch::kDouble);
  const auto difference = (got.detach().to(torch::kCPU, torch::kDouble) - exact).norm();
  const double ratio = (difference / exact.norm().clamp_min(1e-30)).item<double>();
  if (ratio <= tolerance) return;
  throw std::runtime_error(fmt::format(
      "{}: expected a relative difference of {:.1e}, got {:.1e}", what, tolerance, ratio));
}

void require_same_step(
    const train::MicroStep& got,
    const train::MicroStep& wanted,
    const model::Drafter& drafter,
    double tolerance,
    const std::string& what) {
  const auto loss = [](const train::MicroStep& step) {
    return torch::full({1}, step.sums.loss(), torch::kDouble);
  };
  require_near(loss(got), loss(wanted), tolerance, what + ", loss");
  for (size_t i = 0; i < wanted.gradients.size(); ++i)
    require_near(
        got.gradients.at(i), wanted.gradients[i], tolerance,
        fmt::format("{}, gradient of {}", what, drafter.parameters()[i].first));
}

memory::StepShape make_small_shape(int64_t tokens, int64_t blocks, int64_t window) {
  return bench::make_shape(
      {256, 512, 4, 2, 64, 2, 2, 1000, tokens, blocks, 8, window, /*is_bfloat16=*/true, true, false,
       200});
}

/// A drafter with the same weights in another place and type.
model::Drafter
convert(const model::Drafter& drafter, torch::Device device, torch::ScalarType type) {
  model::WeightMap weights;
  for (const auto& [name, tensor] : drafter.parameters())
    weights[name] = tensor.detach().to(device, type, /*non_blocking=*/false, /*copy=*/true);
  return {drafter.config(), std::move(weights)};
}

train::MicroStep run_converted(
    const ShapedRun& run,
    const pipeline::TrainBatch& batch,
    torch::Device device,
    torch::ScalarType type,
    bool recomputes) {
  auto here = batch;
  for (Tensor* tensor : {&here.embedded, &here.features, &here.teacher_states})
    *tensor = tensor->to(device, type);
  return train::run_micro_step(
      convert(run.drafter(), device, type), run.lm_head().to(device, type), here, run.loss(), true,
      {ops::AttentionMethod::kBlock, recomputes});
}

void check_steps(const StepPlace& place) {
  for (const int64_t window : {0, 40}) {
    const ShapedRun run(make_small_shape(300, 12, window));
    const auto batch = run.make_batch();
    const auto wanted = run_converted(run, batch, torch::kCPU, torch::kFloat, false);
    for (const auto type : {torch::kFloat, torch::kBFloat16}) {
      for (const bool recomputes : {false, true}) {
        // Some fifty roundings to bfloat16 one after the other, in two layers and back.
        const double tolerance = type == torch::kFloat ? 1e-4 : 0.04;
        require_same_step(
            run_converted(run, batch, place.device, type, recomputes), wanted, run.drafter(),
            tolerance, fmt::format("{} window={}", c10::toString(type), window));
      }
    }
  }
}

/// Batches of two shapes in turn, with other anchors each time.
void check_replays(const StepPlace& place) {
  const auto first = make_small_shape(300, 12, 40), second = make_small_shape(200, 20, 40);
  const ShapedRun run(first, place.device);
  const ShapedRun other(second, place.device);
  train::StepGraphs graphs(run.drafter(), run.plan(), place.make_recorder());
  for (const int64_t shift : {0, 17, 40, 3}) {
    for (const ShapedRun* shape : {&run, &other}) {
      const auto batch = shape->make_batch(shift);
      const auto eager = run.run_micro_step(batch);
      const auto replayed = run.run_micro_step(batch, &graphs);
      // The same kernels; a library may still choose another one for a product.
      require_same_step(replayed, eager, run.drafter(), 0x1p-8, fmt::format("shift {}", shift));
    }
  }
  if (graphs.num_shapes() != 2)
    throw std::runtime_error(fmt::format("expected 2 shapes, got {}", graphs.num_shapes()));
}

/// A stream of its own for what follows, as a target worker's device has.
c10::OptionalStreamGuard enter_stream(torch::Device device) {
  if (device.is_cpu()) return c10::OptionalStreamGuard();
  return c10::OptionalStreamGuard(
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

void check_handoff(const StepPlace& place) {
  for (const auto from : {torch::Device(torch::kCPU), place.device}) {
    pipeline::Handoff way(from, place.device);
    for (int i = 0; i < 4; ++i) {
      pipeline::TrainBatch batch;
      Tensor wanted;
      {
        const auto guard = enter_stream(from);
        const auto x =
            torch::full({512, 512}, 1.0 / 512, torch::TensorOptions().device(from)) + 0.001 * i;
        auto product = x;
        for (int n = 0; n < 20; ++n)  // takes longer than the host to go on
          product = torch::mm(product, x) / (1 + 0.001 * i * 512);
        wanted = product.clone();
        batch.features = product.unsqueeze(0);
        batch.embedded = (2 * product).unsqueeze(0);
        way.send(batch);
      }
      receive(batch);
      const auto got = batch.features + batch.embedded;
      require_near(got[0] / 3, wanted, 1e-6, fmt::format("{} to device, {}", from.str(), i));
      if (got.device() != place.device) throw std::runtime_error("it is not there");
    }
  }
}

/// As between devices that cannot reach each other; here both ends are the same one.
void check_ring(const StepPlace& place) {
  if (place.device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(place.device.type());
  const auto from = streams.getStreamFromGlobalPool(place.device);
  const auto to = streams.getStreamFromGlobalPool(place.device);
  pipeline::PinnedRing ring(from, to);
  for (const int64_t count : {50'000'000, 3, 8'388'608, 33'000'001}) {
    Tensor sent, arrived;
    {
      const c10::StreamGuard guard(from);
      sent = torch::arange(count, torch::TensorOptions(torch::kInt).device(place.device)) * 3;
    }
    arrived = ring.copy(sent);
    const c10::StreamGuard guard(to);
    if (!arrived.cpu().equal(torch::arange(count, torch::kInt) * 3))
      throw std::runtime_error(fmt::format("{} numbers: other ones arrived", count));
  }
}

}  // namespace

std::vector<StepCheck> step_checks() {
  return {
      {"AStepHasTheLossAndGradientsOfTheCpuInFloat32", check_steps},
      {"AReplayedStepHasTheLossAndGradientsOfAnEagerOne", check_replays},
      {"ABatchIsHandedOverFromStreamToStream", check_handoff},
      {"ACopyThroughPinnedBuffersArrives", check_ring}};
}

}  // namespace draftsmith::testing
