// SPDX-License-Identifier: Apache-2.0
#include "tests/train/step_checks.h"

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// The headers hide Gloo from programs that do not ask for it.
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "draftsmith/pipeline/device_group.h"
#include "draftsmith/pipeline/handoff.h"
#include "draftsmith/train/optimizer.h"
#include "draftsmith/train/step_graphs.h"

#include "bench/shaped_run.h"
#include "tests/support/random_tensor.h"

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

train::AdamW::Parameters make_parameters(torch::Device device) {
  train::AdamW::Parameters parameters;
  uint64_t seed = 0;
  for (const int64_t size : {1, 1000, 70'001}) {  // with and without whole vectors
    const auto weight = random_normal({size}, seed++).to(torch::kBFloat16);
    parameters.emplace_back(fmt::format("p{}", seed), weight.to(device).contiguous());
  }
  return parameters;
}

/// Weights after some updates with the same gradients.
std::vector<Tensor> update_weights(torch::Device device, bool splits_masters) {
  const auto parameters = make_parameters(device);
  train::AdamW optimizer(parameters, {.weight_decay = 0.1, .splits_masters = splits_masters});
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<Tensor> gradients;
    for (const auto& [name, weight] : parameters)
      gradients.push_back(
          random_normal(weight.sizes().vec(), 100 + step).to(device, weight.scalar_type()));
    optimizer.accumulate(gradients);
    optimizer.step(1e-2, 0.5, optimizer.gradient_norm(0.5));
  }
  std::vector<Tensor> weights;
  for (const auto& [name, weight] : parameters)
    weights.push_back(weight);
  return weights;
}

/// float32 masters that differ in their last bits may round to bfloat16 neighbours.
void check_update(const StepPlace& place) {
  const auto wanted = update_weights(torch::kCPU, false);
  const auto got = update_weights(place.device, false);
  const auto split = update_weights(place.device, true);
  for (size_t i = 0; i < wanted.size(); ++i) {
    require_near(got[i], wanted[i], 0x1p-8, fmt::format("weights {}", i));
    if (distance(wanted[i], make_parameters(torch::kCPU)[i].second) < 1e-3)
      throw std::runtime_error(fmt::format("weights {}: expected other ones than at first", i));
    if (!split[i].equal(got[i]))
      throw std::runtime_error(fmt::format("weights {}: split masters have other bits", i));
  }
}

/// Of the group's one rank. On the host that is Gloo, as in a run.
c10::intrusive_ptr<c10d::Backend> make_group_of_one(torch::Device device) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  constexpr std::chrono::milliseconds kTimeout{60'000};
  if (!device.is_cpu()) return pipeline::make_device_group(store, 0, 1, kTimeout);
  const auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, 1, options);
}

/// What one rank sums and gathers stays as it is: the library is found, connects and runs.
void check_collectives(const StepPlace& place) {
  const auto group = make_group_of_one(place.device);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto wanted = random_normal({4096}, 1).to(place.device, dtype);
    std::vector<Tensor> summed = {wanted.clone()};
    group->allreduce(summed)->wait();
    require_near(summed[0], wanted, 0, "the sum of one");
    auto part = wanted.clone();
    auto gathered = torch::zeros_like(wanted);
    group->_allgather_base(gathered, part)->wait();
    require_near(gathered, wanted, 0, "what one gathers");
    if (place.device.is_cpu()) continue;  // a run's Gloo sums whole tensors
    auto scattered = torch::zeros_like(wanted);
    group->_reduce_scatter_base(scattered, part)->wait();
    require_near(scattered, wanted, 0, "the part of one");
  }
}

}  // namespace

std::vector<StepCheck> step_checks() {
  return {
      {"AStepHasTheLossAndGradientsOfTheCpuInFloat32", check_steps},
      {"AReplayedStepHasTheLossAndGradientsOfAnEagerOne", check_replays},
      {"ABatchIsHandedOverFromStreamToStream", check_handoff},
      {"ACopyThroughPinnedBuffersArrives", check_ring},
      {"AnUpdateHasTheWeightsOfTheCpuAndSplitMastersItsBits", check_update},
      {"AGroupOfOneRankSumsAndGathers", check_collectives}};
}

}  // namespace draftsmith::testing
