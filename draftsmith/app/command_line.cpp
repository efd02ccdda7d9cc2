// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/train/bad_step.h"
#include "draftsmith/train/checkpoint_list.h"

namespace draftsmith::app {
namespace {

using Assignments = std::vector<std::pair<std::string, std::string>>;

struct Command {
  const char* name;
  const char* help;
  std::vector<std::string> settings;  // that the command uses: sections or single keys
};

const std::vector<Command>& commands() {
  static const std::vector<Command> list = {
      {"plan",
       "says how many bytes a run needs, part by part, and what it would choose; trains nothing",
       {"target", "drafter", "data", "loss", "attention", "memory", "pipeline",
        "train.shard_optimizer", "train.split_masters", "eval.tree_budget"}},
      {"train",
       "trains a drafter; --resume goes on from the run folder's newest checkpoint",
       {"target", "drafter", "data", "loss", "attention", "memory", "train", "pipeline",
        "eval.tree_budget"}},
      {"eval",
       "decodes prompts speculatively and plainly: acceptance length, speed, equality",
       {"target", "drafter", "eval"}},
      {"generate",
       "lets the target answer prompts and writes the answers as a training dataset",
       {"target", "generate"}},
      {"data",
       "looks at a dataset: counts, lengths, batches, what is wrong with it, and its loss mask",
       {"target", "data"}},
      {"report", "shows runs and evaluations as one HTML page with curves, which needs nothing else", {}},
      {"export",
       "writes a drafter as a folder that z-lab/dflash, SpecForge, SGLang, vLLM or speculators "
       "load",
       {"target.path", "drafter.init"}},
      {"extract",
       "writes the target's hidden states of a dataset once, to train from them without its layers",
       {"target", "drafter", "data", "extract"}},
      {"probe",
       "runs one stage alone on tensors from a file: target, blocks, drafter, loss, tree, decode",
       {"loss", "attention", "memory", "eval"}}};
  return list;
}

bool uses_setting(const Command& command, const std::string& key) {
  return std::any_of(
      command.settings.begin(), command.settings.end(),
      [&](const std::string& used) { return used == key || used == key.substr(0, key.find('.')); });
}

void add_settings(
    CLI::App& app,
    const Command& command,
    const FieldList& fields,
    Assignments& given) {
  for (const Field& field : fields.fields()) {
    if (!uses_setting(command, field.key)) continue;
    app.add_option_function<std::string>(
           "--" + field.key,
           [&given, key = field.key](const std::string& value) { given.emplace_back(key, value); },
           field.help)
        ->type_name(field.kind)
        ->take_last()
        ->default_str(field.print())
        ->group("Settings [" + field.key.substr(0, field.key.find('.')) + "]");
  }
}

void add_data_flags(CLI::App& app, Flags& flags) {
  app.add_option("--show", flags.show, "sequences to print, the supervised part marked")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
      "--target", flags.target,
      "target folder: its vocabulary is checked, its tokenizer shows the text, and it says how "
      "many of the answers' tokens are its own first choice");
}

void add_train_flags(CLI::App& app, Flags& flags) {
  auto* resume = app.add_flag(
      "--resume", flags.resume,
      "go on from the newest complete checkpoint of train.out, with the settings of the run");
  app.add_option(
         "--replay", flags.replay,
         "run the batches of this file of RUN/bad_batches alone and say what is not finite")
      ->excludes(resume);
}

/// The settings of a run that goes on or is looked at again come first, so that a bare --resume
/// or --replay repeats them.
void read_run_settings(const std::filesystem::path& run_folder, const FieldList& fields) {
  const auto saved = run_folder / "settings.toml";
  if (std::filesystem::exists(saved)) read_settings_file(saved, fields);
}

void add_probe_flags(CLI::App& app, Flags& flags) {
  app.add_option("stage", flags.stage, "target, blocks, drafter, loss, tree or decode")->required();
  app.add_option("--input", flags.input, "safetensors file with the tensors that the stage takes")
      ->required();
  app.add_option("--output", flags.output, "safetensors file to write")->required();
  app.add_option("--target", flags.target, "target folder (target, drafter and decode)");
  app.add_option("--drafter", flags.drafter, "drafter folder (blocks, drafter and decode)");
  app.add_option("--dtype", flags.dtype, "float32, bfloat16, or float64 for loss")
      ->capture_default_str();
  app.add_option("--method", flags.method, "chain or tree (decode only)")->capture_default_str();
  app.add_option("--budget", flags.budget, "nodes without the root (tree only)")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--grad", flags.grad, "also write gradients (drafter only)");
}

void add_report_flags(CLI::App& app, Flags& flags) {
  app.add_option(
         "runs", flags.runs, "run folders, overlaid in every chart, and files of eval --json")
      ->required();
  app.add_option(
      "--out", flags.out,
      "HTML file to write; if absent, report.html of the first run, or the first file's name with "
      ".html");
}

void add_export_flags(CLI::App& app, Flags& flags) {
  app.add_option("--format", flags.format, "zlab, specforge, sglang, vllm or speculators")
      ->required();
  app.add_option(
      "--out", flags.out, "folder to write; the run's export/ if drafter.init is a run folder");
  app.add_flag(
      "--check", flags.check,
      "load the folder in a fresh process and compare its states with training's; a folder that "
      "fails is not left");
  app.add_option(
      "--target_name", flags.target_name,
      "the target's name in a speculators folder; target.path if not given");
  app.footer(
      "drafter.init names what is exported: a run folder (its newest checkpoint), a checkpoint or "
      "a drafter folder of any layout. Weights are written in bfloat16.");
}

/// The part of `export --check` that runs in a process of its own; not for people.
void add_export_check(CLI::App& app, Flags& flags) {
  CLI::App* sub = app.add_subcommand("export-check", "compares a folder with states of training");
  sub->group("");
  sub->add_option("--drafter", flags.drafter)->required();
  sub->add_option("--input", flags.input)->required();
}

/// What CLI11 could not place: a misspelt key is answered with the nearest known one.
void refuse_extras(const std::vector<std::string>& extras, const FieldList& fields) {
  for (const std::string& extra : extras) {
    if (extra.rfind("--", 0) != 0) {
      throw ConfigError(
          {.what = "command line",
           .expected = "options only",
           .got = "'" + extra + "'",
           .hint = "draftsmith --help"});
    }
    const std::string key =
        extra.substr(2, extra.find('=') == std::string::npos ? extra.npos : extra.find('=') - 2);
    if (fields.find(key) != nullptr) {
      throw ConfigError(
          {.what = "setting",
           .expected = "one that this command uses",
           .got = "'" + key + "'",
           .where = "command line",
           .hint = "leaving it out"});
    }
    throw ConfigError(
        {.what = "setting",
         .expected = "a known key",
         .got = "'" + key + "'",
         .where = "command line",
         .hint = "--" + fields.nearest_key(key)});
  }
}

}  // namespace

std::string resolve_drafter_folder(const std::string& init) {
  if (init == "random" || init == "target") return init;
  const auto newest = train::find_newest_checkpoint(init);
  return newest ? newest->string() : init;
}

int run_command_line(int argc, const char* const* argv, const BuildInfo& build) {
  RunConfig config;
  Flags flags;
  flags.build = build;
  const FieldList fields = list_fields(config);
  Assignments given;
  std::string config_file;

  CLI::App app("draftsmith trains DFlash drafters for speculative decoding.", "draftsmith");
  app.require_subcommand(1);
  app.footer(  // of the commands, which take it over when they are made
      "Settings are --section.key=value here, or key = value under [section] in the file of "
      "--config.");
  app.set_version_flag(
      "--version",
      fmt::format(
          "draftsmith 0.1.0, commit {}{}", build.commit, build.is_changed ? " with changes" : ""));
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    sub->allow_extras();
    if (!command.settings.empty())
      sub->add_option(
          "--config", config_file, "settings file (TOML); the command line wins over it");
    const std::string name = command.name;
    if (name == "eval" || name == "data" || name == "plan")
      sub->add_flag("--json", flags.json, "print the result as one JSON object");
    if (name == "eval")
      sub->add_flag(
          "--trace", flags.trace,
          "print what every round proposed, accepted and corrected, as text where possible");
    if (name == "plan")
      sub->add_flag("--measure", flags.measure, "measure this machine and predict seconds");
    if (name == "data") add_data_flags(*sub, flags);
    if (name == "train") add_train_flags(*sub, flags);
    if (name == "report") add_report_flags(*sub, flags);
    if (name == "probe") add_probe_flags(*sub, flags);
    if (name == "export") add_export_flags(*sub, flags);
    add_settings(*sub, command, fields, given);
  }
  add_export_check(app, flags);
  app.footer(
      "First generate lets the target write answers, then train learns from them, eval measures "
      "the drafter,\nand export writes it for a server. draftsmith COMMAND --help explains the "
      "settings of a command.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    throw ConfigError(
        {.what = "command line",
         .expected = "valid options",
         .got = error.what(),
         .hint = "draftsmith --help"});
  }
  const CLI::App* sub = app.get_subcommands().front();
  refuse_extras(sub->remaining(), fields);

  if (flags.resume) {
    for (const auto& [key, value] : given)
      if (key == "train.out") config.train.out = value;
    read_run_settings(config.train.out, fields);
  }
  if (!flags.replay.empty())
    read_run_settings(train::read_bad_step(flags.replay).run_folder, fields);
  if (!config_file.empty()) read_settings_file(config_file, fields);
  for (const auto& [key, value] : given)
    fields.get(key, "command line").parse(value);

  const std::string name = sub->get_name();
  if (name == "plan") run_plan(config, flags);
  if (name == "train") flags.replay.empty() ? run_train(config, flags) : run_replay(config, flags);
  if (name == "eval") run_eval(config, flags);
  if (name == "generate") run_generate(config);
  if (name == "data") run_data(config, flags);
  if (name == "report") run_report(flags);
  if (name == "extract") run_extract(config);
  if (name == "probe") run_probe(config, flags);
  if (name == "export") run_export(config, flags);
  if (name == "export-check") run_export_check(flags);
  return 0;
}

}  // namespace draftsmith::app
