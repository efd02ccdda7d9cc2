// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "draftsmith/app/build_info.h"
#include "draftsmith/app/run_config.h"

namespace draftsmith::app {

/// Flags that are not settings.
struct Flags {
  BuildInfo build;
  bool json = false;
  std::string out;  // report, export
  // train
  bool resume = false;
  std::string replay;  // a file of bad_batches
  // plan
  bool measure = false;
  // data
  int64_t show = 0;  // sequences to print
  // eval
  bool trace = false;
  // report
  std::vector<std::string> runs;
  // probe
  std::string stage;
  std::string input;
  std::string output;
  std::string target;
  std::string drafter;
  std::string dtype = "float32";
  std::string method = "chain";
  int64_t budget = 32;
  bool grad = false;
  // export
  std::string format;
  std::string target_name;
  bool check = false;
};

/// Parses the command line and runs its command. Returns 0, or prints help and returns 0.
/// Errors: Error of every kind; the caller turns them into exit codes.
int run_command_line(int argc, const char* const* argv, const BuildInfo& build);

void run_plan(RunConfig config, const Flags& flags);
void run_train(RunConfig config, const Flags& flags);
void run_data(RunConfig config, const Flags& flags);
/// Runs the batches of a file of a run's bad_batches alone, with the weights they failed with, and
/// prints what is not finite. Errors: DivergenceError if something is not.
void run_replay(const RunConfig& config, const Flags& flags);

void run_eval(RunConfig config, const Flags& flags);
void run_extract(RunConfig config);
void run_generate(RunConfig config);
void run_probe(RunConfig config, const Flags& flags);
void run_export(RunConfig config, const Flags& flags);

/// What `export --check` starts as a process of its own: compares `drafter` with the states in
/// `input` and prints the differences as JSON.
void run_export_check(const Flags& flags);

/// Writes one HTML file with the curves of `flags.runs`: folders of runs and files of eval --json.
/// Errors: DataError for a folder without metrics or another file, ConfigError for an output that
/// is no report.
void run_report(const Flags& flags);

/// The drafter folder that `drafter.init` means: a run folder stands for its newest checkpoint.
std::string resolve_drafter_folder(const std::string& init);

}  // namespace draftsmith::app
