// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::pipeline {
namespace {

void check_devices(
    const std::string& key,
    const std::vector<std::string>& devices,
    int64_t workers,
    const std::string& workers_key) {
  for (const auto& name : devices)
    model::parse_device(name, key);
  if (devices.empty() || static_cast<int64_t>(devices.size()) == workers) return;
  throw ConfigError(
      {.what = key,
       .expected = fmt::format("a device for each of {} workers, or none", workers),
       .got = fmt::format("{}", devices.size()),
       .hint = fmt::format("--{}={}", workers_key, devices.size())});
}

}  // namespace

void PipelineSettings::check(const model::TargetSettings& target) const {
  check_devices(
      "pipeline.target_devices", target_devices, target_workers, "pipeline.target_workers");
  check_devices(
      "pipeline.drafter_devices", drafter_devices, drafter_workers, "pipeline.drafter_workers");
  if (!target.devices.empty() && !target_devices.empty()) {
    throw ConfigError(
        {.what = "pipeline.target_devices",
         .expected = "none, as target.devices spreads one target over several devices",
         .got = fmt::format("{}", target_devices.size()),
         .hint = "leaving out one of them"});
  }
  if (role == "target" && target_workers == 0) {
    throw ConfigError(
        {.what = "pipeline.target_workers",
         .expected = "at least 1 where pipeline.role is target",
         .got = "0",
         .hint = "--pipeline.target_workers=1"});
  }
}

std::vector<std::string> PipelineSettings::name_target_devices(
    const model::TargetSettings& target) const {
  if (!target_devices.empty()) return target_devices;
  // The end of a target that is spread over devices is where its states come from.
  const auto& device = target.devices.empty() ? target.device : target.devices.back();
  return std::vector<std::string>(
      static_cast<size_t>(std::max<int64_t>(1, target_workers)), device);
}

std::vector<std::string> PipelineSettings::name_drafter_devices(
    const model::TargetSettings& target) const {
  if (!drafter_devices.empty()) return drafter_devices;
  return std::vector<std::string>(
      static_cast<size_t>(drafter_workers), name_target_devices(target).front());
}

bool PipelineSettings::shares_devices(const model::TargetSettings& target) const {
  const auto targets = name_target_devices(target);
  const auto drafters = name_drafter_devices(target);
  return std::find_first_of(targets.begin(), targets.end(), drafters.begin(), drafters.end()) !=
         targets.end();
}

void PipelineSettings::check_graphs(
    const model::TargetSettings& target,
    bool has_static_shapes,
    const std::string& attention_method) const {
  if (!cuda_graphs) return;
  const auto refuse = [](const std::string& expected, const std::string& got,
                         const std::string& hint) {
    throw ConfigError(
        {.what = "pipeline.cuda_graphs", .expected = expected, .got = got, .hint = hint});
  };
  for (const auto& device : name_drafter_devices(target))
    if (device == "cpu")
      refuse("drafters on CUDA devices", "one on the cpu", "--pipeline.cuda_graphs=false");
  if (!has_static_shapes)
    refuse("batches of few shapes", "data.static_shapes=false", "--data.static_shapes=true");
  if (attention_method != "block")
    refuse("attention.method=block", attention_method, "--attention.method=block");
}

void add_fields(FieldList& fields, PipelineSettings& settings) {
  fields.begin_section("pipeline");
  fields.add(
      "target_workers", settings.target_workers,
      "threads that run the target ahead of the drafters; 0 = in turn with the drafter, which "
      "needs the least memory",
      kAtLeastZero);
  fields.add(
      "drafter_workers", settings.drafter_workers, "drafters that train together", kAtLeastOne);
  fields.add(
      "queue_batches", settings.queue_batches,
      "most batches that wait before each target and before each drafter", kAtLeastOne);
  fields.add(
      "target_devices", settings.target_devices,
      "a device for each target worker; empty = target.device for all");
  fields.add(
      "drafter_devices", settings.drafter_devices,
      "a device for each drafter worker; empty = that of the first target for all");
  fields.add_choice(
      "role", settings.role, {"both", "target", "drafter"},
      "what this process does in a run of several: runs the target for others, trains, or both");
  fields.add(
      "cuda_graphs", settings.cuda_graphs, "capture the drafter's step once for each batch shape");
  fields.add(
      "timeout", settings.timeout, "seconds after which a silent process is taken for dead", {1});
}

void add_fields(FieldList& fields, ExtractSettings& settings) {
  fields.begin_section("extract");
  fields.add("out", settings.out, "folder to write; one of a stopped extract goes on");
  fields.add_choice(
      "format", settings.format, {"bf16", "fp8", "int8"},
      "how states are stored: bf16 trains bit for bit as with the target in the loop; fp8 (e4m3) "
      "and int8 take half the space, with a scale for each position and layer");
  fields.add(
      "layers", settings.layers, "target layers to store; empty = those that the drafter sees");
}

}  // namespace draftsmith::pipeline
