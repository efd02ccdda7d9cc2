// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "draftsmith/base/error.h"

namespace draftsmith::pipeline {

/// What torchrun, mpirun and batch systems tell a process about the others.
struct World {
  int64_t process = 0;    // RANK
  int64_t processes = 1;  // WORLD_SIZE
  std::string address;    // MASTER_ADDR: where process 0 keeps the store
  int64_t port = 0;       // MASTER_PORT
  bool has_store = false; // the launcher keeps the store itself (torchrun)
  std::string prefix;     // of keys in that store: its attempt
};

/// Reads the variables; nothing if neither RANK nor WORLD_SIZE is set, or for a world of one.
/// Errors: ConfigError if one of the four is missing or no number.
std::optional<World> read_world(
    const std::function<const char*(const char*)>& find_variable = {});  // absent = getenv

/// This rank ended because another one did.
class RankEnded : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class Meeting;

/// A rank's side of a c10d group: Gloo for tensors on the host, NCCL for those on CUDA devices.
/// Copies share the group. Every rank makes the same collective calls in the same order; a rank
/// alone makes none, and pays nothing.
/// Errors, of every call that waits: DeviceError naming the rank that is dead, or saying that
/// nobody answered within the meeting's timeout; RankEnded with the error that another one ended
/// with.
/// Threads: collectives by one at a time; sends and receives by several, with tags of their own.
class Ranks {
 public:
  /// A collective under way; its tensor must not be touched before `wait`.
  class Pending {
   public:
    void wait();
    struct State;

   private:
    friend class Ranks;
    std::shared_ptr<State> state_;
  };

  /// Alone: rank 0 of 1.
  Ranks() = default;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool is_first() const { return rank_ == 0; }

  /// Sums over ranks, in place.
  Pending start_all_reduce(const torch::Tensor& tensor) const;

  /// Sums as `start_all_reduce` does, bit for bit, but a rank is only told the part that it owns:
  /// the rank-th of `size` equal parts. The others hold anything afterwards.
  Pending start_reduce_scatter(const torch::Tensor& tensor) const;

  /// Every rank gives the part that it owns, and is told those of the others.
  void all_gather(const torch::Tensor& tensor) const;

  /// The tensor of rank `root`, for all.
  void broadcast(const torch::Tensor& tensor, int64_t root = 0) const;

  /// From rank to rank; a send ends once the other has asked for it.
  void send(const torch::Tensor& tensor, int64_t to, int64_t tag = 0) const;
  void receive(const torch::Tensor& tensor, int64_t from, int64_t tag = 0) const;
  /// From whoever comes first. Returns who it was.
  int64_t receive_any(const torch::Tensor& tensor, int64_t tag = 0) const;

  /// Small sums, the same bits on every rank.
  std::vector<double> sum(const std::vector<double>& values) const;
  /// One value of every rank, in their order.
  std::vector<double> gather(double value) const;
  /// A text of every rank, in their order.
  std::vector<std::string> gather(const std::string& text) const;
  /// Whether any rank says so.
  bool any(bool value) const;

  /// Ends this rank because another one announced its end. Errors: RankEnded, always.
  [[noreturn]] void follow_end() const;

  /// Tells the other ranks why this one ends. Then they do not wait for it: their calls fail with
  /// this text. Never throws.
  void announce_end(std::string_view reason) const;

  /// Closes the connections, so that nobody waits for this rank any longer.
  void leave();

 private:
  friend class Meeting;
  struct Group;
  /// Starts a call: `start(backend, tensors)`, with errors explained.
  template <class Start>
  Pending begin(const char* action, const torch::Tensor& tensor, Start&& start) const;
  Ranks(std::shared_ptr<Group> group, int64_t rank, int64_t size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  std::shared_ptr<Group> group_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
};

/// Where the ranks of a run find each other: a store of c10d's in this process, or one that all
/// processes reach. One per process, shared by its threads.
class Meeting {
 public:
  /// For ranks that are threads of this process.
  explicit Meeting(std::chrono::milliseconds timeout);

  /// For the processes of a world; waits for all of them.
  /// Errors: DeviceError if they do not come within `timeout`.
  Meeting(const World& world, std::chrono::milliseconds timeout);

  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// As Ranks::announce_end, before this process has joined a group.
  void announce_end(std::string_view reason) const;

  int64_t process() const { return process_; }
  int64_t processes() const { return processes_; }

  /// Every process gives a text under `name`; returns those of all, by process.
  std::vector<std::string> exchange(const std::string& name, const std::string& text);

  /// Joins the group `name` as a rank of it. `process_of_rank` says where each rank lives; its
  /// size is the group's. Waits for the others. A group of one is a rank alone.
  Ranks join(
      const std::string& name, int64_t rank, const std::vector<int64_t>& process_of_rank) const;

  /// A group of threads of this process.
  Ranks join_threads(int64_t rank, int64_t size) const {
    return join("threads", rank, std::vector<int64_t>(static_cast<size_t>(size), 0));
  }

 private:
  friend class Ranks;
  struct State;
  std::shared_ptr<State> state_;
  int64_t process_ = 0;
  int64_t processes_ = 1;
};

}  // namespace draftsmith::pipeline
