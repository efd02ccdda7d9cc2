// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include <ATen/Parallel.h>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/plan_run.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/data/batch_source.h"
#include "draftsmith/data/feature_format.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/stored_dtype.h"
#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/cuda/devices.h"
#include "draftsmith/pipeline/split.h"
#include "draftsmith/train/made_up_run.h"
#include "draftsmith/train/objective.h"

namespace draftsmith::app {
namespace {

constexpr double kMeasuredSeconds = 5;  // of a step, at most, at the rate of its products alone

/// Where the drafter of the plan runs; the host in its place where there is no such GPU.
torch::Device find_device(const std::string& name) {
  const bool is_here = name == "cpu" || ops::cuda::count_devices() > 0;
  return is_here ? model::parse_device(name, "pipeline.drafter_devices") : torch::kCPU;
}

/// Rate of a matrix product of the drafter's shape: [rows, D] x [D, I].
double
measure_gemm_rate(const memory::StepShape& shape, torch::ScalarType dtype, torch::Device device) {
  const int64_t rows = std::min<int64_t>(shape.rows(), 4096);
  const int64_t D = shape.drafter.hidden_size, I = shape.drafter.intermediate_size;
  const auto options = torch::TensorOptions(dtype).device(device);
  const auto x = torch::ones({rows, D}, options);
  const auto weight = torch::ones({I, D}, options);
  const auto multiply = [&] { torch::mm(x, weight.t())[0][0].item<float>(); };
  multiply();
  const Stopwatch watch;
  int64_t runs = 0;
  while (watch.seconds() < 0.5) {
    multiply();
    ++runs;
  }
  return 2.0 * static_cast<double>(rows * D * I * runs) / watch.seconds();
}

/// What was run, and what a whole step takes at its rate.
struct Measurement {
  train::MeasuredStep step;
  torch::Device device = torch::kCPU;
  double scale = 1;                // of the whole step's products to those that were run
  pipeline::StageSeconds seconds;  // of whole batches
};

Measurement measure(const memory::MemoryPlan& plan, int64_t budget, torch::Device device) {
  auto shape = plan.shape;
  const auto dtype = shape.element_bytes == 4 ? torch::kFloat : torch::kBFloat16;
  const double rate = measure_gemm_rate(shape, dtype, device);
  shape.is_on_gpu = device.is_cuda();
  memory::measure_products(shape);
  const int64_t room = std::min(
      budget, memory::find_budget({.budget = "0"}, device.is_cpu() ? "cpu" : device.str()));
  shape = train::shrink_shape(shape, room, rate * kMeasuredSeconds);
  Measurement result;
  result.step = train::measure_step(shape, device);
  result.device = device;
  result.scale = plan.step_flops / memory::count_step_flops(shape);
  result.seconds.drafter = result.step.seconds() * result.scale;
  result.seconds.target = memory::count_target_flops(plan.shape) / rate;
  return result;
}

formats::Json describe_part(const train::MeasuredPart& part) {
  return {
      {"seconds", part.seconds},
      {"planned_bytes", part.planned_bytes},
      {"measured_bytes", part.measured_bytes}};
}

formats::Json describe_measured(const Measurement& measured) {
  const auto& shape = measured.step.shape;
  return {
      {"device", measured.device.str()},
      {"context_tokens", shape.context_tokens},
      {"blocks", shape.blocks},
      {"layers", shape.drafter.num_layers},
      {"scale", measured.scale},
      {"forward", describe_part(measured.step.forward)},
      {"head", describe_part(measured.step.head)},
      {"backward", describe_part(measured.step.backward)}};
}

void print_measured(const Measurement& measured) {
  const auto& shape = measured.step.shape;
  print_result(
      "measured on {}: a step of {} context tokens, {} blocks, {} layers; bytes beside the state",
      measured.device.str(), shape.context_tokens, shape.blocks, shape.drafter.num_layers);
  const auto line = [](const char* name, const train::MeasuredPart& part) {
    print_result(
        "  {:<20} {:>9.3f} s  planned {:>9}  measured {:>9}", name, part.seconds,
        memory::print_bytes(part.planned_bytes),
        part.measured_bytes == 0 ? "-" : memory::print_bytes(part.measured_bytes));
  };
  line("drafter's forward", measured.step.forward);
  line("lm_head and loss", measured.step.head);
  line("drafter's backward", measured.step.backward);
}

/// Of a batch, with what makes it: in turn with the target, or as fast as the slower side.
double batch_seconds(
    const pipeline::StageSeconds& stages,
    const memory::StepShape& shape,
    const pipeline::PipelineSettings& settings) {
  const bool is_beside = settings.target_workers > 0 && !shape.shares_target;
  if (!is_beside) return stages.target + stages.drafter;
  return 1 / batches_per_s(stages, {settings.target_workers, settings.drafter_workers});
}

/// What others keep: whole logits, and keys gathered for every block with heads expanded or not.
struct Naive {
  int64_t logits, expanded_gather, grouped_gather;

  explicit Naive(const memory::StepShape& s, int64_t longest) {
    const auto& d = s.drafter;
    logits = s.rows() * d.vocab_size * s.element_bytes;
    const int64_t gathered = 2 * s.blocks * longest * d.head_dim * s.element_bytes;
    expanded_gather = gathered * d.num_heads;
    grouped_gather = gathered * d.num_kv_heads;
  }
};

}  // namespace

memory::StepShape make_step_shape(
    const RunConfig& config,
    const formats::DrafterConfig& drafter,
    const formats::TargetConfig& target) {
  memory::StepShape shape;
  shape.drafter = drafter;
  shape.target = target;
  shape.element_bytes = config.drafter.dtype == "float32" ? 4 : 2;
  shape.target_element_bytes = config.target.dtype == "float32" ? 4 : 2;
  shape.context_tokens = config.data.tokens_per_batch;
  shape.blocks = config.data.num_anchors;
  shape.chunk_rows = config.loss.chunk_rows;
  shape.threads = at::get_num_threads();
  shape.has_teacher = config.loss.kl_weight > 0;
  // Weights of another dtype than the run's are converted, so they are no mapped pages.
  const auto stored = formats::read_stored_dtype(config.target.path);
  shape.has_target_copy = !stored.empty() && stored != config.target.dtype;
  shape.splits_masters = config.train.split_masters;
  shape.tree_budget = std::min(config.eval.tree_budget, drafter.vocab_size);
  const auto& pipeline = config.pipeline;
  const auto drafters = pipeline.name_drafter_devices(config.target);
  const auto targets = pipeline.name_target_devices(config.target);
  const auto& device = drafters.front();
  shape.drafters = std::count(drafters.begin(), drafters.end(), device);
  shape.is_on_gpu = device != "cpu";
  memory::measure_products(shape);
  shape.shares_target = pipeline.shares_devices(config.target);
  // A GPU maps no files; and targets elsewhere leave only waiting batches with the drafter.
  shape.has_target_copy = shape.shares_target && (shape.has_target_copy || shape.is_on_gpu);
  shape.attention = ops::find_method_that_runs(
      model::parse_attention_method(config.attention.method),
      shape.is_on_gpu ? torch::kCUDA : torch::kCPU, model::parse_dtype(config.drafter.dtype),
      {0, drafter.num_heads, drafter.num_kv_heads, drafter.head_dim});
  shape.loss = train::parse_loss_method(config.loss.method);
  shape.has_stored_features =
      !config.data.path.empty() && data::is_feature_folder(config.data.path);
  if (shape.has_stored_features && data::read_feature_header(config.data.path).format != "bf16")
    shape.unpacked_tokens = std::min(config.data.max_length, shape.context_tokens);
  if (config.train.shard_optimizer) shape.optimizer_shards = pipeline.drafter_workers;
  if (pipeline.target_workers > 0) {
    shape.target_workers = std::count(targets.begin(), targets.end(), device);
    shape.waiting_batches = pipeline.queue_batches * shape.drafters;
  }
  return shape;
}

void run_plan(RunConfig config, const Flags& flags) {
  if (config.target.path.empty()) {
    throw ConfigError(
        {.what = "target.path",
         .expected = "a folder with the target's config.json",
         .got = "none",
         .hint = "--target.path=DIR"});
  }
  const auto target = formats::read_target_config(config.target.path);
  config.drafter.init = resolve_drafter_folder(config.drafter.init);
  const bool is_new = config.drafter.init == "random" || config.drafter.init == "target";
  const auto drafter = is_new
                           ? model::make_drafter_config(config.drafter, target, config.target.path)
                           : formats::read_drafter_config(config.drafter.init);
  const auto shape = make_step_shape(config, drafter, target);
  const int64_t budget = memory::find_budget(
      config.memory, config.pipeline.name_drafter_devices(config.target).front());
  const auto plan = memory::choose_plan(shape, config.memory, budget);
  const int64_t P = memory::count_drafter_parameters(drafter);
  const int64_t plain_state = P * (2 * shape.element_bytes + 8);
  const Naive naive(shape, std::min(config.data.max_length, shape.context_tokens));
  std::optional<Measurement> measured;
  if (flags.measure)
    measured = measure(
        plan, budget, find_device(config.pipeline.name_drafter_devices(config.target).front()));
  const auto stages = measured ? measured->seconds : pipeline::StageSeconds();
  const double step_seconds = stages.drafter;
  const int64_t devices =
      std::max<int64_t>(2, config.pipeline.target_workers + config.pipeline.drafter_workers);
  const auto split = pipeline::find_best_split(stages, devices);
  const auto tokens = static_cast<double>(plan.shape.context_tokens);
  const double split_rate = flags.measure ? tokens * batches_per_s(stages, split) : 0;
  double hours_per_epoch = 0;
  int64_t batches = 0;
  if (flags.measure && !config.data.path.empty()) {
    data::BatchSource source(
        data::TokenDataset::open(config.data.path, config.data.split), config.data,
        target.vocab_size);
    batches = source.batches_of_epoch(0);
    hours_per_epoch =
        batch_seconds(stages, plan.shape, config.pipeline) * static_cast<double>(batches) / 3600;
  }
  if (flags.json) {
    formats::Json parts(plan.parts);
    formats::Json result{
        {"parameters", P},
        {"parts", parts},
        {"state_bytes", plan.state},
        {"weights_gradients_moments_bytes", plain_state},
        {"target_forward_bytes", plan.target_forward},
        {"drafter_forward_bytes", plan.forward},
        {"head_bytes", plan.head},
        {"drafter_backward_bytes", plan.backward},
        {"drafter_step_bytes", plan.drafter_step},
        {"step_1_bytes", plan.step()},
        {"step_2_bytes", plan.step()},
        {"evaluation_bytes", plan.evaluation},
        {"saving_bytes", plan.saving},
        {"peak_bytes", plan.peak()},
        {"mapped_bytes", plan.mapped},
        {"budget_bytes", budget},
        {"recompute", plan.shape.recomputes_layers ? "layer" : "none"},
        {"chunk_rows", plan.shape.chunk_rows},
        {"tokens_per_batch", plan.shape.context_tokens},
        {"step_flops", plan.step_flops},
        {"step_seconds", step_seconds},
        {"target_seconds", stages.target},
        {"split", {{"targets", split.targets}, {"drafters", split.drafters}}},
        {"tokens_per_s", split_rate},
        {"batches_per_epoch", batches},
        {"hours_per_epoch", hours_per_epoch},
        {"whole_logits_bytes", naive.logits},
        {"gathered_keys_bytes", naive.expanded_gather},
        {"gathered_keys_grouped_bytes", naive.grouped_gather}};
    if (measured) result["measured"] = describe_measured(*measured);
    print_result("{}", result.dump());
    return;
  }
  print_result("{}", memory::print_plan(plan, budget));
  print_result(
      "for comparison: weights, gradients and moments without masters {:.2f} GB\n"
      "  whole logits of a step would take {} (several times over); keys and values gathered for\n"
      "  every block {} a full layer with heads expanded, {} grouped",
      static_cast<double>(plain_state) / 1e9, memory::print_bytes(naive.logits),
      memory::print_bytes(naive.expanded_gather), memory::print_bytes(naive.grouped_gather));
  if (measured) {
    print_measured(*measured);
    print_result(
        "a drafter step: {:.1f} TFLOP of products, {:.2f} s at the rate of what was measured",
        plan.step_flops / 1e12, step_seconds);
    print_result(
        "products of the target's forward: {:.2f} s; {:.0f} tokens/s in turn on one such device",
        stages.target, tokens / (stages.target + stages.drafter));
    print_result(
        "{} such devices: {} for targets and {} for drafters make {:.0f} tokens/s", devices,
        split.targets, split.drafters, split_rate);
  }
  if (hours_per_epoch > 0) print_result("hours per epoch: {:.2f}", hours_per_epoch);
}

}  // namespace draftsmith::app
