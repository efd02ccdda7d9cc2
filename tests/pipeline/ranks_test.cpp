// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/reference.h"

namespace draftsmith::pipeline {
namespace {

using testing::expect_error;
using testing::random_normal;
using testing::run_ranks;

std::function<const char*(const char*)> environment(
    const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> const char* {
    static std::string value;
    const auto found = variables.find(name);
    if (found == variables.end()) return nullptr;
    value = found->second;
    return value.c_str();
  };
}

TEST(World, IsReadFromTheVariablesOfTorchrun) {
  const auto world = read_world(environment(
      {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(world.has_value());
  EXPECT_EQ(world->process, 2);
  EXPECT_EQ(world->processes, 3);
  EXPECT_EQ(world->address, "n0");
  EXPECT_EQ(world->port, 29500);
  EXPECT_FALSE(world->has_store);
}

TEST(World, OfNoVariablesOrOfOneProcessIsNone) {
  EXPECT_FALSE(read_world(environment({})).has_value());
  // Shells that once started something keep such a variable.
  EXPECT_FALSE(read_world(environment({{"MASTER_ADDR", "n0"}})).has_value());
  EXPECT_FALSE(read_world(environment({{"RANK", "0"},
                                       {"WORLD_SIZE", "1"},
                                       {"MASTER_ADDR", "n0"},
                                       {"MASTER_PORT", "1"}}))
                   .has_value());
}

TEST(World, UsesTheStoreThatTorchrunKeeps) {
  const auto world = read_world(environment(
      {{"RANK", "0"},
       {"WORLD_SIZE", "2"},
       {"MASTER_ADDR", "n0"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "4"}}));
  ASSERT_TRUE(world.has_value());
  EXPECT_TRUE(world->has_store);
  EXPECT_NE(world->prefix.find("4"), std::string::npos);
}

TEST(World, RefusesVariablesThatAreMissingOrWrong) {
  const auto refuse = [](const std::map<std::string, std::string>& change,
                         const std::vector<std::string>& parts) {
    std::map<std::string, std::string> variables = {
        {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
    for (const auto& [name, value] : change) {
      if (value.empty())
        variables.erase(name);
      else
        variables[name] = value;
    }
    expect_error<ConfigError>([&] { read_world(environment(variables)); }, parts);
  };
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    refuse({{name, ""}}, {name, "none"});
  refuse({{"RANK", "2"}}, {"RANK", "0 to 1", "'2'"});
  refuse({{"RANK", "first"}}, {"RANK", "'first'"});
  refuse({{"WORLD_SIZE", "0"}}, {"WORLD_SIZE"});
  refuse({{"MASTER_PORT", "99999"}}, {"MASTER_PORT"});
}

TEST(Ranks, AloneChangeNothing) {
  const Ranks ranks;
  const auto tensor = torch::ones({3});
  ranks.start_all_reduce(tensor).wait();
  ranks.start_reduce_scatter(tensor).wait();
  ranks.all_gather(tensor);
  ranks.broadcast(tensor);
  EXPECT_TRUE(tensor.equal(torch::ones({3})));
  EXPECT_EQ(ranks.sum({2, 3}), (std::vector<double>{2, 3}));
  EXPECT_EQ(ranks.gather(7), std::vector<double>{7});
  EXPECT_EQ(ranks.gather("text"), std::vector<std::string>{"text"});
  EXPECT_TRUE(ranks.any(true));
  EXPECT_FALSE(ranks.any(false));
  ranks.announce_end("nothing");
}

TEST(Ranks, SumTensorsOfAllAndAgreeOnEveryBit) {
  std::mutex mutex;
  std::vector<torch::Tensor> results;
  run_ranks(4, [&](Ranks& ranks) {
    const auto tensor = random_normal({1000}, static_cast<uint64_t>(ranks.rank())).to(torch::kFloat);
    ranks.start_all_reduce(tensor).wait();
    const std::lock_guard lock(mutex);
    results.push_back(tensor);
  });
  auto exact = torch::zeros({1000}, torch::kDouble);
  for (uint64_t rank = 0; rank < 4; ++rank)
    exact += random_normal({1000}, rank).to(torch::kFloat).to(torch::kDouble);
  for (const auto& result : results) {
    EXPECT_TRUE(result.equal(results[0]));
    EXPECT_LE(testing::max_difference(result, exact), 3 * 8 * std::exp2(-24));  // three additions
  }
}

TEST(Ranks, TellAPartTheBitsOfTheWholeSum) {
  run_ranks(4, [&](Ranks& ranks) {
    const auto whole =
        random_normal({640}, static_cast<uint64_t>(ranks.rank())).to(torch::kFloat);
    const auto part = whole.clone();
    ranks.start_all_reduce(whole).wait();
    ranks.start_reduce_scatter(part).wait();
    EXPECT_TRUE(part.narrow(0, 160 * ranks.rank(), 160)
                    .equal(whole.narrow(0, 160 * ranks.rank(), 160)));
    const auto gathered = torch::full({640}, -1.0F);
    gathered.narrow(0, 160 * ranks.rank(), 160).copy_(part.narrow(0, 160 * ranks.rank(), 160));
    ranks.all_gather(gathered);
    EXPECT_TRUE(gathered.equal(whole));
  });
}

TEST(Ranks, SendBroadcastAndGather) {
  run_ranks(3, [&](Ranks& ranks) {
    auto tensor = torch::full({5}, static_cast<float>(ranks.rank()), torch::kBFloat16);
    ranks.broadcast(tensor, 2);
    EXPECT_TRUE(tensor.equal(torch::full({5}, 2.0F, torch::kBFloat16)));
    EXPECT_EQ(
        ranks.gather(std::string(static_cast<size_t>(ranks.rank()), 'x')),
        (std::vector<std::string>{"", "x", "xx"}));
    EXPECT_EQ(ranks.gather(std::string()), std::vector<std::string>(3));
    EXPECT_EQ(ranks.gather(static_cast<double>(10 * ranks.rank())),
              (std::vector<double>{0, 10, 20}));
    EXPECT_EQ(ranks.sum({1, 0.5}), (std::vector<double>{3, 1.5}));
    EXPECT_TRUE(ranks.any(ranks.rank() == 1));
    EXPECT_FALSE(ranks.any(false));
    const auto message = torch::tensor({ranks.rank(), ranks.rank() * ranks.rank()});
    if (ranks.is_first()) {
      std::vector<bool> has_come = {true, false, false};
      for (int i = 0; i < 2; ++i) {
        const auto from = ranks.receive_any(message, 5);
        EXPECT_EQ(message[0].item<int64_t>(), from);
        has_come[static_cast<size_t>(from)] = true;
      }
      EXPECT_EQ(has_come, std::vector<bool>(3, true));
      ranks.receive(message, 2);
      EXPECT_EQ(message[1].item<int64_t>(), 4);
    } else {
      ranks.send(message, 0, 5);
      if (ranks.rank() == 2) ranks.send(message, 0);
    }
  });
}

TEST(Ranks, FailWithTheReasonOfTheOneThatEnds) {
  std::atomic<int> followed = 0;
  expect_error<DataError>(
      [&] {
        run_ranks(4, [&](Ranks& ranks) {
          ranks.any(false);
          if (ranks.rank() == 0) throw DataError({.what = "shard 7", .expected = "a file"});
          expect_error<DeviceError>([&] { ranks.any(false); }, {"rank 0", "shard 7"});
          ++followed;
        });
      },
      {"shard 7"});
  EXPECT_EQ(followed, 3);
}

TEST(Ranks, WaitNoLongerThanTheTimeout) {
  // Rank 1 lives, but never comes.
  std::atomic<bool> has_failed = false;
  run_ranks(
      2,
      [&](Ranks& ranks) {
        if (ranks.rank() == 1) {
          while (!has_failed)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        expect_error<DeviceError>(
            [&] { ranks.any(false); }, {"an answer within 1 s", "pipeline.timeout"});
        has_failed = true;
      },
      std::chrono::seconds(1));
}

TEST(Meeting, SaysThatProcessesAreMissing) {
  World world;
  world.processes = 2;
  world.address = "127.0.0.1";
  world.port = 29641;
  expect_error<DeviceError>(
      [&] { Meeting meeting(world, std::chrono::seconds(1)); },
      {"process 0 of 2", "127.0.0.1:29641", "within 1 s"});
}

}  // namespace
}  // namespace draftsmith::pipeline
