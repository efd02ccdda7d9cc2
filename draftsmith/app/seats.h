// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/pipeline/settings.h"

namespace draftsmith::app {

/// Who does what in a run of several drafters or processes, and this process's part of it.
/// Ranks of drafters are counted through the processes, in their order.
class Seats {
 public:
  /// A process alone, or one of RANK and WORLD_SIZE: then it waits for all others.
  /// Errors: ConfigError for roles that do not make a run together; as pipeline::Meeting.
  explicit Seats(const pipeline::PipelineSettings& settings);

  /// Whether this process holds drafter 0, which writes the run folder.
  bool is_first() const { return has_drafters() && first_rank_ == 0; }
  bool has_drafters() const { return num_drafters_ > 0; }
  /// Whether targets run in other processes than drafters.
  bool is_split() const { return !process_of_link_.empty(); }

  int64_t num_ranks() const { return static_cast<int64_t>(process_of_rank_.size()); }
  int64_t first_rank() const { return first_rank_; }      // of this process's drafters
  int64_t num_drafters() const { return num_drafters_; }  // of this process
  int64_t num_targets() const { return num_targets_; }    // of this process, in a split run

  /// Errors: ConfigError naming the first of `settings` that differs from the first drafter's.
  /// What says where things lie on a machine, or who does what, may differ; a process of targets
  /// is asked for theirs only.
  void check_settings(const std::map<std::string, std::string>& settings);

  /// The text of the process that holds drafter 0, for all.
  std::string share_text(const std::string& name, const std::string& text);

  /// Tells the other processes why this one ends. Never throws.
  void announce_end(std::string_view reason) const {
    if (meeting_) meeting_->announce_end(reason);
  }

  /// Joins the group of drafters as the `index`-th of this process.
  pipeline::Ranks join_drafters(int64_t index) const;

  /// Joins the group by which drafters' processes reach targets, as the process of drafters that
  /// this is, or as its `target`-th target.
  pipeline::Ranks join_links(int64_t target = 0) const;
  int64_t num_link_clients() const { return num_clients_; }
  /// Ranks of targets among the links.
  std::vector<int64_t> list_link_servers() const;

 private:
  std::unique_ptr<pipeline::Meeting> meeting_;  // none for one drafter
  std::vector<int64_t> process_of_rank_;
  std::vector<int64_t> process_of_link_;  // processes of drafters, then targets
  int64_t first_rank_ = 0;
  int64_t num_drafters_ = 0;
  int64_t num_targets_ = 0;
  int64_t num_clients_ = 0;
  int64_t own_link_ = 0;
  int64_t first_process_ = 0;  // that holds drafter 0
};

}  // namespace draftsmith::app
