// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/seats.h"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <sstream>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::app {
namespace {

struct Seat {
  std::string role;
  int64_t drafters = 0;
  int64_t targets = 0;  // that serve others
};

Seat parse_seat(const std::string& text) {
  Seat seat;
  std::istringstream(text) >> seat.role >> seat.drafters >> seat.targets;
  return seat;
}

void check_roles(const std::vector<Seat>& seats) {
  std::set<std::string> roles;
  for (const Seat& seat : seats)
    roles.insert(seat.role);
  if (roles == std::set<std::string>{"both"} ||
      roles == std::set<std::string>{"drafter", "target"})
    return;
  std::string got;
  for (size_t i = 0; i < seats.size(); ++i)
    got += fmt::format("{}{}", i == 0 ? "" : ", ", seats[i].role);
  throw ConfigError(
      {.what = "pipeline.role",
       .expected = "both in every process, or target in some and drafter in the others",
       .got = got,
       .where = "processes in their order",
       .hint = "--pipeline.role=both"});
}

/// Settings that a process may have of its own.
bool may_differ(const std::string& key) {
  static const std::set<std::string> keys = {
      "train.out", "train.name", "data.path", "target.path", "target.device", "target.devices",
      "memory.budget", "train.allow_change", "drafter.init"};
  const auto section = key.substr(0, key.find('.'));
  return keys.count(key) != 0 || section == "pipeline" || section == "generate" ||
         section == "extract";
}

}  // namespace

Seats::Seats(const pipeline::PipelineSettings& settings) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * settings.timeout));
  const auto world = pipeline::read_world();
  Seat own{settings.role, settings.drafter_workers, 0};
  if (own.role == "target") own = {own.role, 0, settings.target_workers};
  std::vector<Seat> seats = {own};
  if (world) {
    meeting_ = std::make_unique<pipeline::Meeting>(*world, timeout);
    seats.clear();
    for (const auto& text : meeting_->exchange(
             "role", fmt::format("{} {} {}", own.role, own.drafters, own.targets)))
      seats.push_back(parse_seat(text));
  } else if (own.drafters > 1) {
    meeting_ = std::make_unique<pipeline::Meeting>(timeout);
  }
  check_roles(seats);
  const int64_t process = meeting_ ? meeting_->process() : 0;
  num_drafters_ = own.drafters;
  num_targets_ = own.targets;
  std::vector<int64_t> servers;
  for (size_t i = 0; i < seats.size(); ++i) {
    const auto p = static_cast<int64_t>(i);
    if (p == process) {
      first_rank_ = num_ranks();
      own_link_ = own.drafters > 0 ? static_cast<int64_t>(process_of_link_.size())
                                   : static_cast<int64_t>(servers.size());
    }
    if (seats[i].drafters > 0) {
      if (process_of_rank_.empty()) first_process_ = p;
      process_of_rank_.insert(
          process_of_rank_.end(), static_cast<size_t>(seats[i].drafters), p);
      process_of_link_.push_back(p);
    }
    servers.insert(servers.end(), static_cast<size_t>(seats[i].targets), p);
  }
  num_clients_ = static_cast<int64_t>(process_of_link_.size());
  if (own.drafters == 0) own_link_ += num_clients_;
  process_of_link_.insert(process_of_link_.end(), servers.begin(), servers.end());
  if (servers.empty()) process_of_link_.clear();
}

void Seats::check_settings(const std::map<std::string, std::string>& settings) {
  if (!meeting_ || meeting_->processes() == 1) return;
  const auto texts = meeting_->exchange("settings", formats::Json(settings).dump());
  const auto first =
      formats::Json::parse(texts[static_cast<size_t>(first_process_)]).get<std::map<std::string, std::string>>();
  for (const auto& [key, value] : settings) {
    const auto found = first.find(key);
    const bool is_used = has_drafters() || key.rfind("target.", 0) == 0;
    if (!is_used || may_differ(key) || (found != first.end() && found->second == value)) continue;
    throw ConfigError(
        {.what = key,
         .expected = fmt::format(
             "'{}' as in process {}", found == first.end() ? "" : found->second, first_process_),
         .got = fmt::format("'{}'", value),
         .where = fmt::format("process {}", meeting_->process()),
         .hint = "the same settings for all processes"});
  }
}

std::string Seats::share_text(const std::string& name, const std::string& text) {
  if (!meeting_ || meeting_->processes() == 1) return text;
  return meeting_->exchange(name, text)[static_cast<size_t>(first_process_)];
}

pipeline::Ranks Seats::join_drafters(int64_t index) const {
  if (!meeting_) return {};
  return meeting_->join("drafters", first_rank_ + index, process_of_rank_);
}

pipeline::Ranks Seats::join_links(int64_t target) const {
  return meeting_->join("links", own_link_ + target, process_of_link_);
}

std::vector<int64_t> Seats::list_link_servers() const {
  std::vector<int64_t> servers;
  for (auto i = num_clients_; i < static_cast<int64_t>(process_of_link_.size()); ++i)
    servers.push_back(i);
  return servers;
}

}  // namespace draftsmith::app
