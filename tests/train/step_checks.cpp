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

/// The norm of the difference, relative to that of `wanted`.
double distance(const Tensor& got, const Tensor& wanted) {
  const auto exact = wanted.detach().to(torch::kCPU, torch::kDouble);
  const auto difference = (got.detach().to(torch::kCPU, torch::kDouble) - exact).norm();
  return (difference / exact.norm().clamp_min(1e-30)).item<double>();
}

/// Errors: std::runtime_error unless it is at most `tolerance`.
void require_near(
    const Tensor& got,
    const Tensor& wanted,
    double tolerance,
    const std::string& what) {
  const double ratio = distance(got, wanted);
  if (ratio <= tolerance) return;
  throw std::runtime_error(fmt::format(
      "{}: expected a relative difference of {:.1e}, got {:.1e}", what, tolerance, ratio));
}

/// The loss, then the gradients.
std::vector<Tensor> results_of(const train::MicroStep& step) {
  std::vector<Tensor> results = {torch::full({1}, step.sums.loss(), torch::kDouble)};
  results.insert(results.end(), step.gradients.begin(), step.gradients.end());
  return results;
}

/// `tolerance(i)` is that of result i.
void require_same_step(
    const train::MicroStep& got,
    const train::MicroStep& wanted,
    const model::Drafter& drafter,
    const std::function<double(size_t)>& tolerance,
    const std::string& what) {
  const auto results = results_of(got), exact = results_of(wanted);
  for (size_t i = 0; i < exact.size(); ++i)
    require_near(
        results.at(i), exact[i], tolerance(i),
        i == 0 ? what + ", loss"
               : fmt::format("{}, gradient of {}", what, drafter.parameters()[i - 1].first));
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

/// In bfloat16 a gradient is as far from the exact one as its roundings, and how much of the terms
/// cancels, take it. That is much the same wherever it is computed, so the CPU's distance is the
/// measure: twice that, and one rounding.
void check_steps(const StepPlace& place) {
  for (const int64_t window : {0, 40}) {
    const ShapedRun run(make_small_shape(300, 12, window));
    const auto batch = run.make_batch();
    const auto exact = run_converted(run, batch, torch::kCPU, torch::kFloat, false);
    const auto rounded =
        results_of(run_converted(run, batch, torch::kCPU, torch::kBFloat16, false));
    const auto exact_results = results_of(exact);
    for (const auto type : {torch::kFloat, torch::kBFloat16}) {
      const auto tolerance = [&](size_t i) {
        return type == torch::kFloat ? 1e-4 : 2 * distance(rounded[i], exact_results[i]) + 0x1p-8;
      };
      for (const bool recomputes : {false, true})
        require_same_step(
            run_converted(run, batch, place.device, type, recomputes), exact, run.drafter(),
            tolerance, fmt::format("{} window={}", c10::toString(type), window));
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
      require_same_step(
          replayed, eager, run.drafter(), [](size_t) { return 0x1p-8; },
          fmt::format("shift {}", shift));
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
