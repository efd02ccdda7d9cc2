// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/planned_run.h"

#include <fmt/format.h>

#include <optional>

#include <c10/util/Exception.h>

#include "draftsmith/base/log.h"
#include "draftsmith/memory/device_memory.h"
#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/out_of_memory.h"
#include "draftsmith/memory/settings.h"

namespace draftsmith::memory {
namespace {

/// Phases of a GPU's tensors are not measured, only their peak.
void log_comparison(const MemoryPlan& plan, torch::Device device) {
  const auto measured = device.is_cpu() ? host_phase_peaks() : std::map<std::string, int64_t>();
  log_line(compare_with_plan(plan, measured, peak_bytes(device)));
}

}  // namespace

std::string compare_with_plan(
    const MemoryPlan& plan,
    const std::map<std::string, int64_t>& measured,
    int64_t measured_peak) {
  std::string text =
      fmt::format("memory ran out:\n  {:<42} {:>12} {:>12}\n", "", "planned", "measured");
  const auto line = [&](const std::string& name, int64_t planned, std::optional<int64_t> bytes) {
    text += fmt::format(
        "  {:<42} {:>12} {:>12}\n", name, print_bytes(planned), bytes ? print_bytes(*bytes) : "-");
  };
  const auto phase = [&](const std::string& name, int64_t planned) {
    const auto found = measured.find(name);
    line(name, planned, found == measured.end() ? std::nullopt : std::make_optional(found->second));
  };
  phase("the state of the run", plan.state);
  // A target that works beside the drafter sees the drafter's tensors too.
  const bool is_beside = plan.shape.target_workers > 0;
  phase("the target's forward", is_beside ? plan.step() : plan.target_forward);
  phase("the drafter's forward", plan.forward);
  phase("lm_head and loss", plan.head);
  phase("the drafter's backward", plan.backward);
  phase("the optimizer's update", plan.backward);
  phase("evaluation", plan.evaluation);
  line("peak, slack included", plan.peak(), measured_peak);
  text += fmt::format(
      "  while a checkpoint is written, all of them have up to {} more\n  planned at the peak:\n",
      print_bytes(plan.saving - plan.step()));
  for (const auto& [part, bytes] : plan.parts)
    if (bytes > 0) text += fmt::format("    {:<40} {:>12}\n", part, print_bytes(bytes));
  text.pop_back();
  return text;
}

void run_by_plan(const MemoryPlan& plan, torch::Device device, const std::function<void()>& body) {
  try {
    body();
  } catch (const OutOfMemory&) {
    log_comparison(plan, device);
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    log_comparison(plan, device);
    throw OutOfMemory(describe_lack(
        "memory on " + device.str(), error.what_without_backtrace(), first_failed_host_phase()));
  }
}

}  // namespace draftsmith::memory
