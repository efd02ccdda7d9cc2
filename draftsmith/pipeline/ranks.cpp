// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

// The headers hide Gloo from programs that do not ask for it.
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "draftsmith/base/error.h"
#include "draftsmith/pipeline/device_group.h"
#include "draftsmith/pipeline/life_signs.h"

namespace draftsmith::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kMargin{10000};  // to find out who is dead, once a call has failed
constexpr milliseconds kPoll{20};

/// How long a call waits, so that the process has ended after the whole timeout.
milliseconds call_timeout(milliseconds timeout) { return std::max(timeout - kMargin, timeout / 2); }

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// The address of this machine on the way to `host`, so that the others can reach it: a host's own
/// name often means the loopback device. Empty if `host` is unknown.
std::string find_own_address(const std::string& host, int64_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (addrinfo* item = found; item != nullptr && address.empty(); item = item->ai_next) {
    const int fd = ::socket(item->ai_family, item->ai_socktype, item->ai_protocol);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    auto* own_address = reinterpret_cast<sockaddr*>(&own);
    if (::connect(fd, item->ai_addr, item->ai_addrlen) == 0 &&
        ::getsockname(fd, own_address, &length) == 0 &&
        ::getnameinfo(own_address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      address = text;
    ::close(fd);
  }
  ::freeaddrinfo(found);
  return address;
}

int64_t parse_variable(const char* name, const char* text, int64_t low, int64_t high) {
  const std::string_view view(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error == std::errc() && end == view.data() + view.size() && value >= low && value <= high)
    return value;
  throw ConfigError(
      {.what = name,
       .expected = fmt::format("a whole number from {} to {}", low, high),
       .got = fmt::format("'{}'", text),
       .where = "environment",
       .hint = "torchrun, or all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
}

/// c10d notes every call in one recorder of the process, whose map of groups has no lock (2.11.0):
/// the groups of several threads break it. Who sets the variable has it as asked.
void switch_flight_recorder_off() { ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0); }

}  // namespace

std::optional<World> read_world(const std::function<const char*(const char*)>& find_variable) {
  const auto find = [&](const char* name) {
    return find_variable ? find_variable(name) : std::getenv(name);
  };
  if (find("RANK") == nullptr && find("WORLD_SIZE") == nullptr) return std::nullopt;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (find(name) != nullptr && *find(name) != '\0') continue;
    throw ConfigError(
        {.what = name,
         .expected = "a value, as RANK or WORLD_SIZE has one",
         .got = "none",
         .where = "environment",
         .hint = "all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none"});
  }
  World world;
  world.processes = parse_variable("WORLD_SIZE", find("WORLD_SIZE"), 1, 1'000'000);
  world.process = parse_variable("RANK", find("RANK"), 0, world.processes - 1);
  world.address = find("MASTER_ADDR");
  world.port = parse_variable("MASTER_PORT", find("MASTER_PORT"), 1, 65535);
  const char* has_store = find("TORCHELASTIC_USE_AGENT_STORE");
  if (has_store != nullptr && std::string_view(has_store) == "True") {
    world.has_store = true;
    const char* attempt = find("TORCHELASTIC_RESTART_COUNT");
    world.prefix = fmt::format("draftsmith/attempt_{}", attempt == nullptr ? "0" : attempt);
  }
  if (world.processes == 1) return std::nullopt;
  return world;
}

struct Meeting::State {
  StorePointer store;
  std::unique_ptr<LifeSigns> life;
  std::vector<std::string> hosts;  // by process
  milliseconds timeout;
  std::string own_address = "127.0.0.1";
  int64_t processes = 1;
  bool keeps_store = false;
  std::atomic<int64_t> failed_at_ms{-1};  // of the steady clock, when the first call failed

  static int64_t now_ms() {
    return std::chrono::duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
  }
  /// Waits until everybody has set its key, or has ended.
  void wait_for(c10d::Store& in, const std::vector<std::string>& keys) const {
    const auto deadline = steady_clock::now() + timeout;
    while (!in.check(keys)) {
      if (const auto reason = LifeSigns::read_reason(*store); !reason.empty()) {
        throw RankEnded(
            {.what = "the other ranks",
             .expected = "all of them to begin",
             .got = reason,
             .hint = "again when that is mended"});
      }
      if (steady_clock::now() > deadline) throw std::runtime_error("some did not come in time");
      std::this_thread::sleep_for(kPoll);
    }
  }
  /// Whoever keeps the store may end at what it has read, but not before the others have read it.
  void wait_for_readers(const std::string& key, int64_t readers) const {
    store->add(key, 1);
    const auto deadline = steady_clock::now() + timeout;
    while (keeps_store && store->add(key, 0) < readers && steady_clock::now() < deadline)
      std::this_thread::sleep_for(kPoll);
  }
  void note_failure() {
    int64_t never = -1;
    failed_at_ms.compare_exchange_strong(never, now_ms());
  }
};

struct Ranks::Group {
  std::shared_ptr<Meeting::State> meeting;
  std::string name;
  int64_t rank;
  std::vector<int64_t> process_of_rank;
  StorePointer store;
  c10::intrusive_ptr<c10d::Backend> host;
  c10::intrusive_ptr<c10d::Backend> device;  // made for the first tensor of one
  std::mutex mutex;                          // held while a call starts, not while it goes on

  int64_t size() const { return static_cast<int64_t>(process_of_rank.size()); }

  c10d::Backend& backend_of(const torch::Tensor& tensor) {
    if (host == nullptr) {
      throw DeviceError(
          {.what = fmt::format("rank {}", rank),
           .expected = "connections to the others",
           .got = "none: it has left them"});
    }
    if (tensor.is_cpu()) return *host;
    if (device == nullptr)
      device = make_device_group(store, rank, size(), call_timeout(meeting->timeout));
    return *device;
  }

  /// "rank 2 (process 1 on NAME)" of a process's ranks.
  std::string describe_process(int64_t process) const {
    std::vector<int64_t> ranks;
    for (size_t i = 0; i < process_of_rank.size(); ++i)
      if (process_of_rank[i] == process) ranks.push_back(static_cast<int64_t>(i));
    const auto& hosts = meeting->hosts;
    const auto place = static_cast<size_t>(process) < hosts.size()
                           ? fmt::format(" on {}", hosts[static_cast<size_t>(process)])
                           : "";
    if (ranks.empty()) return fmt::format("process {}{}", process, place);
    return fmt::format(
        "rank{} {} (process {}{})", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "), process,
        place);
  }

  /// Throws what a failed call means: who is dead, or who ended and why.
  [[noreturn]] void fail(const char* action, const std::exception& error) const {
    meeting->note_failure();
    const auto cause = meeting->life->find_cause();
    const std::string where = fmt::format("rank {} of {}, {}", rank, size(), action);
    if (!cause.reason.empty()) {
      throw RankEnded(
          {.what = "the other ranks",
           .expected = "none to end before the run",
           .got = cause.reason,
           .where = where,
           .hint = "--resume when that is mended"});
    }
    if (cause.process >= 0) {
      const auto dead = describe_process(cause.process);
      meeting->life->announce(dead + " shows no sign of life");
      throw DeviceError(
          {.what = dead,
           .expected = "a sign of life",
           .got = fmt::format("none ({})", first_line(error)),
           .where = where,
           .hint = "its own log, then --resume"});
    }
    throw DeviceError(
        {.what = "the other ranks",
         .expected = fmt::format(
             "an answer within {:g} s", std::chrono::duration<double>(meeting->timeout).count()),
         .got = first_line(error),
         .where = where,
         .hint = "a larger pipeline.timeout if one of them is slow"});
  }
};

struct Ranks::Pending::State {
  c10::intrusive_ptr<c10d::Work> work;
  std::shared_ptr<Group> group;
  const char* action;
  torch::Tensor tensor;  // kept alive
};

void Ranks::Pending::wait() {
  const auto state = std::exchange(state_, nullptr);
  if (state == nullptr) return;
  try {
    state->work->wait();
  } catch (const std::exception& error) {
    state->group->fail(state->action, error);
  }
}

template <class Start>
Ranks::Pending Ranks::begin(const char* action, const torch::Tensor& tensor, Start&& start) const {
  Pending pending;
  if (size_ == 1) return pending;
  std::vector<torch::Tensor> tensors = {tensor};
  try {
    const std::lock_guard lock(group_->mutex);
    auto& backend = group_->backend_of(tensor);
    pending.state_ = std::make_shared<Pending::State>(
        Pending::State{start(backend, tensors), group_, action, tensor});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    group_->fail(action, error);
  }
  return pending;
}

namespace {

torch::Tensor own_part(const torch::Tensor& tensor, int64_t rank, int64_t size) {
  DS_CHECK(tensor.dim() == 1 && tensor.is_contiguous() && tensor.numel() % size == 0);
  const int64_t part = tensor.numel() / size;
  return tensor.narrow(0, rank * part, part);
}

}  // namespace

Ranks::Pending Ranks::start_all_reduce(const torch::Tensor& tensor) const {
  return begin(
      "summing", tensor, [](auto& backend, auto& tensors) { return backend.allreduce(tensors); });
}

Ranks::Pending Ranks::start_reduce_scatter(const torch::Tensor& tensor) const {
  // Gloo's own is an all-reduce of a copy; without the copy it is the same and takes no memory.
  if (tensor.is_cpu()) return start_all_reduce(tensor);
  auto part = own_part(tensor, rank_, size_);
  return begin("summing", tensor, [&](auto& backend, auto& tensors) {
    return backend._reduce_scatter_base(part, tensors[0]);
  });
}

void Ranks::all_gather(const torch::Tensor& tensor) const {
  auto part = own_part(tensor, rank_, size_);
  begin("gathering", tensor, [&](auto& backend, auto& tensors) {
    return backend._allgather_base(tensors[0], part);
  }).wait();
}

void Ranks::broadcast(const torch::Tensor& tensor, int64_t root) const {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  begin("broadcast", tensor, [&](auto& backend, auto& tensors) {
    return backend.broadcast(tensors, options);
  }).wait();
}

void Ranks::send(const torch::Tensor& tensor, int64_t to, int64_t tag) const {
  DS_CHECK(to != rank_ && to < size_);
  begin("sending", tensor, [&](auto& backend, auto& tensors) {
    return backend.send(tensors, static_cast<int>(to), static_cast<int>(tag));
  }).wait();
}

void Ranks::receive(const torch::Tensor& tensor, int64_t from, int64_t tag) const {
  DS_CHECK(from != rank_ && from < size_);
  begin("receiving", tensor, [&](auto& backend, auto& tensors) {
    return backend.recv(tensors, static_cast<int>(from), static_cast<int>(tag));
  }).wait();
}

int64_t Ranks::receive_any(const torch::Tensor& tensor, int64_t tag) const {
  DS_CHECK(size_ > 1 && tensor.is_cpu());
  auto pending = begin("waiting for a message", tensor, [&](auto& backend, auto& tensors) {
    return backend.recvAnysource(tensors, static_cast<int>(tag));
  });
  const auto work = pending.state_->work;
  pending.wait();
  return work->sourceRank();
}

std::vector<double> Ranks::sum(const std::vector<double>& values) const {
  if (size_ == 1) return values;
  const auto tensor = torch::tensor(values, torch::kDouble);
  start_all_reduce(tensor).wait();
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

std::vector<double> Ranks::gather(double value) const {
  if (size_ == 1) return {value};
  const auto tensor = torch::zeros({size_}, torch::kDouble);
  tensor[rank_] = value;
  all_gather(tensor);
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

std::vector<std::string> Ranks::gather(const std::string& text) const {
  if (size_ == 1) return {text};
  const auto lengths = gather(static_cast<double>(text.size()));
  const auto most = static_cast<int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  if (most == 0) return std::vector<std::string>(lengths.size());
  const auto tensor = torch::zeros({size_ * most}, torch::kByte);
  std::copy(text.begin(), text.end(), tensor.data_ptr<uint8_t>() + rank_ * most);
  all_gather(tensor);
  std::vector<std::string> texts;
  for (const double length : lengths) {
    const auto* begin = tensor.data_ptr<uint8_t>() + static_cast<int64_t>(texts.size()) * most;
    texts.emplace_back(begin, begin + static_cast<int64_t>(length));
  }
  return texts;
}

bool Ranks::any(bool value) const { return sum({value ? 1.0 : 0.0})[0] > 0; }

void Ranks::follow_end() const {
  group_->fail("agreeing on a step", std::runtime_error("a rank has failed"));
}

void Ranks::announce_end(std::string_view reason) const {
  if (group_ == nullptr) return;
  try {
    group_->meeting->note_failure();
    group_->meeting->life->announce(fmt::format("the end of rank {}: {}", rank_, reason));
  } catch (const std::exception&) {  // the store is gone, and its process with it
  }
}

void Ranks::leave() {
  if (group_ == nullptr) return;
  group_->host.reset();
  group_->device.reset();
}

Meeting::Meeting(milliseconds timeout) : state_(std::make_shared<State>()) {
  switch_flight_recorder_off();
  state_->timeout = timeout;
  state_->store = c10::make_intrusive<c10d::HashStore>();
  state_->store->setTimeout(timeout);
  state_->life = std::make_unique<LifeSigns>(state_->store, 0, 1);
}

Meeting::Meeting(const World& world, milliseconds timeout)
    : state_(std::make_shared<State>()), process_(world.process), processes_(world.processes) {
  switch_flight_recorder_off();
  state_->timeout = timeout;
  state_->processes = processes_;
  state_->keeps_store = process_ == 0 && !world.has_store;
  state_->own_address = find_own_address(world.address, world.port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.port);
  options.isServer = state_->keeps_store;
  if (!world.has_store) options.numWorkers = static_cast<size_t>(world.processes);
  options.waitWorkers = !world.has_store;
  options.timeout = timeout;
  try {
    state_->store = c10::make_intrusive<c10d::TCPStore>(world.address, options);
    if (!world.prefix.empty())
      state_->store = c10::make_intrusive<c10d::PrefixStore>(world.prefix, state_->store);
    state_->life = std::make_unique<LifeSigns>(state_->store->clone(), process_, processes_);
  } catch (const std::exception& error) {
    throw DeviceError(
        {.what = fmt::format("process {} of {}", process_, processes_),
         .expected = fmt::format(
             "all of them at {}:{} within {:g} s", world.address, world.port,
             std::chrono::duration<double>(timeout).count()),
         .got = first_line(error),
         .where = "MASTER_ADDR and MASTER_PORT",
         .hint = "starting all WORLD_SIZE processes, with a free port of process 0's machine"});
  }
  state_->hosts = exchange("host", host_name());
}

Meeting::~Meeting() {
  const int64_t failed_at = state_->failed_at_ms.load();
  if (failed_at < 0 || !state_->keeps_store) return;
  // Others read in this store why the run ended.
  try {
    const int64_t last = failed_at + LifeSigns::kMostTime.count();
    while (State::now_ms() < last && state_->store->add(LifeSigns::kReadersKey, 0) < processes_)
      std::this_thread::sleep_for(kPoll);
  } catch (const std::exception&) {  // nothing is left to read
  }
}

void Meeting::announce_end(std::string_view reason) const {
  try {
    state_->note_failure();
    state_->life->announce(fmt::format("the end of process {}: {}", process_, reason));
  } catch (const std::exception&) {  // the store is gone
  }
}

std::vector<std::string> Meeting::exchange(const std::string& name, const std::string& text) {
  std::vector<std::string> texts;
  const auto key = [&](int64_t process) { return fmt::format("text/{}/{}", name, process); };
  try {
    state_->store->set(key(process_), text);
    for (int64_t i = 0; i < processes_; ++i) {
      state_->wait_for(*state_->store, {key(i)});
      texts.push_back(state_->store->get_to_str(key(i)));
    }
    state_->wait_for_readers("read/" + name, processes_);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DeviceError(
        {.what = fmt::format("process {}", texts.size()),
         .expected = fmt::format("its {}", name),
         .got = first_line(error),
         .where = fmt::format("process {} of {}", process_, processes_),
         .hint = "its own log"});
  }
  return texts;
}

Ranks Meeting::join(
    const std::string& name,
    int64_t rank,
    const std::vector<int64_t>& process_of_rank) const {
  const auto size = static_cast<int64_t>(process_of_rank.size());
  DS_CHECK(rank >= 0 && rank < size);
  if (size == 1) return {};
  auto group = std::make_shared<Ranks::Group>();
  group->meeting = state_;
  group->name = name;
  group->rank = rank;
  group->process_of_rank = process_of_rank;
  // Threads of one process must not share a connection to a store: a wait would block the others.
  group->store = c10::make_intrusive<c10d::PrefixStore>(
      name, processes_ > 1 ? state_->store->clone() : state_->store);
  const auto here = [](int64_t member) { return fmt::format("here/{}", member); };
  std::vector<std::string> keys;
  for (int64_t i = 0; i < size; ++i)
    keys.push_back(here(i));
  try {
    group->store->set(here(rank), "");
    state_->wait_for(*group->store, keys);
    const auto options = c10d::ProcessGroupGloo::Options::create(call_timeout(state_->timeout));
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // as torch has it
    options->devices.push_back(
        processes_ > 1 && interface != nullptr
            ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
            : c10d::ProcessGroupGloo::createDeviceForHostname(state_->own_address));
    group->host = c10::make_intrusive<c10d::ProcessGroupGloo>(
        group->store, static_cast<int>(rank), static_cast<int>(size), options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    group->fail("meeting the others", error);
  }
  return Ranks(std::move(group), rank, size);
}

}  // namespace draftsmith::pipeline
