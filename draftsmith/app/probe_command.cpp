// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/probe_stages.h"
#include "draftsmith/base/error.h"

namespace draftsmith::app {
namespace {

void require_folder(const std::string& value, const char* flag) {
  if (!value.empty()) return;
  throw ConfigError(
      {.what = flag,
       .expected = "a folder",
       .got = "none",
       .where = "probe",
       .hint = fmt::format("{} DIR", flag)});
}

torch::ScalarType parse_probe_dtype(const Flags& flags) {
  if (flags.dtype == "float32") return torch::kFloat;
  if (flags.dtype == "bfloat16") return torch::kBFloat16;
  if (flags.dtype == "float64" && flags.stage == "loss") return torch::kDouble;
  throw ConfigError(
      {.what = "--dtype",
       .expected = flags.stage == "loss" ? "float32, bfloat16 or float64" : "float32 or bfloat16",
       .got = "'" + flags.dtype + "'",
       .where = "probe " + flags.stage});
}

formats::NamedTensors
run_stage(const RunConfig& config, const Flags& flags, torch::ScalarType dtype) {
  const ProbeInput input(flags.input);
  const auto is_stage = [&](std::initializer_list<const char*> stages) {
    return std::find(stages.begin(), stages.end(), flags.stage) != stages.end();
  };
  const bool needs_target = is_stage({"target", "drafter", "decode"});
  const bool needs_drafter = is_stage({"blocks", "drafter", "decode"});
  if (needs_target) require_folder(flags.target, "--target");
  if (needs_drafter) require_folder(flags.drafter, "--drafter");
  if (flags.stage == "target") return probe_target(input, config);
  if (flags.stage == "blocks") return probe_blocks(input, config);
  if (flags.stage == "drafter") return probe_drafter(input, config, flags.grad);
  if (flags.stage == "loss") return probe_loss(input, config, dtype);
  if (flags.stage == "tree") return probe_tree(input, flags.budget);
  return probe_decode(input, config);
}

void check_stage(const std::string& stage) {
  for (const char* known : {"target", "blocks", "drafter", "loss", "tree", "decode"})
    if (stage == known) return;
  throw ConfigError(
      {.what = "probe stage",
       .expected = "target, blocks, drafter, loss, tree or decode",
       .got = "'" + stage + "'"});
}

}  // namespace

void run_probe(RunConfig config, const Flags& flags) {
  check_stage(flags.stage);
  const auto dtype = parse_probe_dtype(flags);
  if (flags.method != "chain" && flags.method != "tree") {
    throw ConfigError(
        {.what = "--method",
         .expected = "chain or tree",
         .got = "'" + flags.method + "'",
         .where = "probe"});
  }
  config.loss.check();
  config.target.path = flags.target;
  config.target.dtype = flags.dtype;
  config.drafter.init = flags.drafter;
  config.drafter.dtype = flags.dtype;
  config.eval.method = flags.method;
  formats::write_safetensors(flags.output, run_stage(config, flags, dtype));
}

}  // namespace draftsmith::app
