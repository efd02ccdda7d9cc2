// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/plan_run.h"
#include "draftsmith/app/resume.h"
#include "draftsmith/app/seats.h"
#include "draftsmith/app/train_workers.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/data/dataset_fingerprint.h"
#include "draftsmith/formats/model_fingerprint.h"
#include "draftsmith/memory/device_memory.h"
#include "draftsmith/memory/planned_run.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/sdp_backend.h"
#include "draftsmith/pipeline/batch_shapes.h"
#include "draftsmith/pipeline/target_states.h"
#include "draftsmith/train/checkpoint_list.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

void require(const std::string& value, const std::string& key, const std::string& expected) {
  if (!value.empty()) return;
  throw ConfigError(
      {.what = key, .expected = expected, .got = "none", .hint = fmt::format("--{}=...", key)});
}

/// Refuses to write into a run that is not resumed.
void prepare_run_folder(const fs::path& out, bool is_resumed) {
  const bool has_run = fs::exists(out / "settings.toml") || fs::exists(out / "checkpoints");
  if (has_run && !is_resumed) {
    throw ConfigError(
        {.what = "train.out",
         .expected = "a folder without a run",
         .got = "a run",
         .where = out.string(),
         .hint = "--resume, or another folder"});
  }
  if (!has_run && is_resumed) {
    throw ConfigError(
        {.what = "train.out",
         .expected = "the folder of a run to resume",
         .got = "no run",
         .where = out.string(),
         .hint = "leaving out --resume"});
  }
  make_writable_folder(out, "train.out");
}

std::string fingerprint_data(const data::BatchSource& source) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < source.source_names().size(); ++i)
    parts.push_back(data::fingerprint_dataset(source.dataset(static_cast<int64_t>(i))));
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Token ids of some of the first batch, on which `drafter.init = target` measures norms.
torch::Tensor pick_sample(data::BatchSource& source) {
  const auto ids = source.read({}, {2, 0, 0}).tokens.ids;
  return ids.narrow(0, 0, std::min<int64_t>(ids.size(0), 4));
}

void log_drafter(const model::Drafter& drafter) {
  log_info(
      "drafter: {} parameters, {} layers, blocks of {}, mask token {}, sees target layers {}",
      drafter.num_parameters(), drafter.config().num_layers, drafter.config().block_size,
      drafter.config().mask_token_id, fmt::join(drafter.config().target_layer_ids, ", "));
}

/// Says how draft blocks attend. Errors: DeviceError for a backend that must be allowed.
void check_attention(const model::AttentionSettings& settings, const model::Drafter& drafter) {
  const auto& config = drafter.config();
  const auto asked = model::parse_attention_method(settings.method);
  const auto method = ops::find_method_that_runs(
      asked, drafter.device(), drafter.dtype(),
      {0, config.num_heads, config.num_kv_heads, config.head_dim});
  if (method != ops::AttentionMethod::kGather)
    return log_info("attention of blocks: {}", settings.method);
  const auto device = drafter.device();
  const auto backend = ops::find_gather_backend(device, drafter.dtype(), config.head_dim);
  ops::check_gather_backend(backend, device.type(), settings.allow_math);
  log_info(
      "attention of blocks: gather, by the {} backend of scaled_dot_product_attention on {}{}",
      ops::name_of(backend), device.str(),
      method == asked ? ""
                      : fmt::format(
                            " (block has no kernel there for {} and heads of {})",
                            model::dtype_name(drafter.dtype()), config.head_dim));
}

/// The memory plan of a run. One that goes on keeps the plan of its checkpoint, whatever memory is
/// free today: rows in chunks of another size round otherwise.
memory::MemoryPlan choose_run_plan(
    const memory::StepShape& shape,
    const memory::MemorySettings& settings,
    int64_t budget,
    const std::optional<train::RunStamp>& saved) {
  if (saved && saved->chunk_rows > 0) {
    memory::StepShape as_saved = shape;
    as_saved.chunk_rows = saved->chunk_rows;
    as_saved.recomputes_layers = saved->recomputes_layers;
    const auto plan = memory::plan_memory(as_saved);
    if (plan.peak() <= budget) return plan;
    const auto in_turn = memory::run_in_turn(plan);  // the same bits
    if (shape.target_workers > 0 && in_turn.peak() <= budget) return in_turn;
    log_warning(
        "the memory plan of the run has no room here: it goes on with another, which rounds "
        "differently");
  }
  return memory::choose_plan(shape, settings, budget);
}

/// The targets of a process that trains, one for each worker. Where others run them, only their
/// ends are loaded, once; all of a target to begin a drafter with its layers.
std::vector<std::shared_ptr<const model::Target>> open_run_targets(
    const RunConfig& config,
    const std::vector<int64_t>& layer_ids,
    bool is_elsewhere) {
  auto devices = config.pipeline.name_target_devices(config.target);
  if (is_elsewhere) devices.resize(1);
  return pipeline::open_targets(config.target, devices, [&](const model::TargetSettings& settings) {
    return is_elsewhere ? model::Target::load_ends(settings, nullptr)
                        : pipeline::open_target(settings, config.data.path, layer_ids);
  });
}

void train_drafters(RunConfig config, const Flags& flags, Seats& seats) {
  const fs::path out = config.train.out;
  config.drafter.init = resolve_drafter_folder(config.drafter.init);
  std::optional<fs::path> checkpoint;
  if (flags.resume && seats.is_first()) checkpoint = train::find_newest_checkpoint(out);
  const auto shared = seats.share_text("checkpoint", checkpoint ? checkpoint->string() : "");
  if (!shared.empty()) checkpoint = shared;

  // Everything that is quick to check comes before weights are read and before files change.
  const auto target_config = formats::read_target_config(config.target.path);
  auto drafter_settings = config.drafter;
  if (checkpoint) drafter_settings.init = checkpoint->string();  // its first weights may be gone
  auto drafter_config =
      model::make_drafter_config(drafter_settings, target_config, config.target.path);
  if (config.train.name.empty()) config.train.name = make_run_name(config, drafter_config);
  // A permission for this start only: the run's settings do not keep it.
  const auto allow_change = std::exchange(config.train.allow_change, {});
  const FieldList fields = list_fields(config);
  const std::string settings_file = write_settings(fields);
  train::RunStamp stamp;
  stamp.settings = settings_as_text(fields);
  stamp.commit = flags.build.commit;
  stamp.is_changed = flags.build.is_changed;
  auto source = data::BatchSource::open(
      pipeline::fit_positions(config.data, target_config), target_config.vocab_size, out);
  stamp.dataset = fingerprint_data(source);
  stamp.target = formats::fingerprint_model(config.target.path);
  std::optional<train::RunStamp> saved;
  if (checkpoint) saved = train::read_stamp(*checkpoint);
  if (saved) check_resumed(*saved, stamp, allow_change);
  auto held_out = source.held_out();
  const auto device = config.pipeline.name_drafter_devices(config.target).front();
  const int64_t budget = memory::find_budget(config.memory, device);
  auto shape = make_step_shape(config, drafter_config, target_config);
  shape.context_tokens = std::min(shape.context_tokens, source.most_batch_tokens());
  if (config.train.shard_optimizer) shape.optimizer_shards = seats.num_ranks();
  const auto plan = choose_run_plan(shape, config.memory, budget, saved);
  stamp.chunk_rows = plan.shape.chunk_rows;
  stamp.recomputes_layers = plan.shape.recomputes_layers;
  auto targets = open_run_targets(config, drafter_config.target_layer_ids, seats.is_split());
  const auto& target = *targets.front();

  if (seats.is_first()) {
    prepare_run_folder(out, flags.resume);
    if (!checkpoint) write_file_atomically(out / "settings.toml", settings_file);
    copy_log_to(out / "log.txt");
  }
  log_info("run {}: {}", config.train.name, out.string());
  for (const auto& line : source.describe())
    log_line(line);
  if (seats.is_first()) source.save_index();
  const bool begins_with_layers = drafter_settings.init == "target";
  const auto sample = begins_with_layers ? pick_sample(source) : torch::Tensor();
  std::optional<model::Target> whole;  // only to copy from, where this process has no layers
  const bool has_layers = !seats.is_split() && target.stored() == nullptr;
  if (begins_with_layers && !has_layers) whole = model::Target::load(config.target);
  const auto drafter = model::build_drafter(
      drafter_settings, std::move(drafter_config), whole ? *whole : target, sample,
      static_cast<uint64_t>(config.train.seed));
  whole.reset();
  log_drafter(drafter);
  check_attention(config.attention, drafter);
  if (seats.num_ranks() > 1)
    log_info(
        "drafters {} to {} of {} train here", seats.first_rank(),
        seats.first_rank() + seats.num_drafters() - 1, seats.num_ranks());

  if (const auto shapes = pipeline::choose_batch_shapes(source); !shapes.empty())
    log_info("{}", pipeline::describe_shapes(shapes, source));
  log_info("memory plan:\n{}", memory::print_plan(plan, budget));
  if (config.memory.budget != "0")
    for (const auto& name : config.pipeline.name_drafter_devices(config.target))
      memory::limit_bytes(
          model::parse_device(name, "pipeline.drafter_devices"), budget - plan.beside_tensors());
  auto loss = config.loss;  // the settings that a resumed run repeats keep what was asked for
  if (loss.method == "fused") loss.chunk_rows = plan.shape.chunk_rows;
  if (!checkpoint && flags.resume)
    log_info("no complete checkpoint in {}: the run begins anew", out.string());
  TrainOutcome outcome;
  memory::run_by_plan(plan, model::parse_device(device, "pipeline.drafter_devices"), [&] {
    outcome = run_drafters(
        {seats, config, std::move(targets), drafter, std::move(source), std::move(held_out), plan,
         loss, stamp, checkpoint, allow_change, settings_file});
  });
  if (!seats.is_first()) return;
  if (outcome.is_done) {
    print_result("trained {} steps: {}", outcome.total_steps, (out / "export").string());
  } else {
    print_result(
        "stopped after step {} of {}; --resume goes on", outcome.step, outcome.total_steps);
  }
}

}  // namespace

void run_train(RunConfig config, const Flags& flags) {
  keep_lines_for_copy();
  const bool serves = config.pipeline.role == "target";
  require(config.target.path, "target.path", "a Hugging Face folder");
  if (!serves) require(config.data.path, "data.path", "a dataset folder");
  if (!serves) require(config.train.out, "train.out", "a run folder");
  config.loss.check();
  if (!serves) config.train.check(config.eval.tree_budget);
  config.pipeline.check(config.target);
  if (!serves)
    config.pipeline.check_graphs(config.target, config.data.static_shapes, config.attention.method);
  const FieldList fields = list_fields(config);
  Seats seats(config.pipeline);
  try {
    seats.check_settings(settings_as_text(fields));
    if (serves) {
      seats.share_text("checkpoint", "");  // all processes take part in what one tells
      run_targets(seats, config);
    } else {
      train_drafters(config, flags, seats);
    }
  } catch (const std::exception& error) {
    seats.announce_end(error.what());
    throw;
  }
  stop_log_copy();
}

}  // namespace draftsmith::app
