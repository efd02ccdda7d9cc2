// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "draftsmith/app/run_config.h"

namespace draftsmith::app {

/// Flags that are not settings.
struct Flags {
  bool json = false;
  bool resume = false;
  // probe
  std::string stage;
  std::string input;
  std::string output;
  std::string target;
  std::string drafter;
  std::string dtype = "float32";
  std::string method = "chain";
  bool grad = false;
  // export
  std::string format;
  std::string out;
  std::string target_name;
  bool check = false;
};

/// Parses the command line and runs its command. Returns 0, or prints help and returns 0.
/// Errors: Error of every kind; the caller turns them into exit codes.
int run_command_line(int argc, const char* const* argv);

void run_train(RunConfig config, const Flags& flags);
void run_eval(RunConfig config, const Flags& flags);
void run_generate(RunConfig config);
void run_probe(RunConfig config, const Flags& flags);
void run_export(RunConfig config, const Flags& flags);

/// What `export --check` starts as a process of its own: compares `drafter` with the states in
/// `input` and prints the differences as JSON.
void run_export_check(const Flags& flags);

/// The drafter folder that `drafter.init` means: a run folder stands for its newest checkpoint.
std::string resolve_drafter_folder(const std::string& init);

}  // namespace draftsmith::app
