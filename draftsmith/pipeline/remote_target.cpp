// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/remote_target.h"

#include "draftsmith/base/error.h"
#include "draftsmith/memory/stage.h"
#include "draftsmith/pipeline/target_states.h"

namespace draftsmith::pipeline {
namespace {

constexpr int64_t kRequestTag = 0;
enum Kind : int64_t { kRun = 0, kDone = 1, kFailed = 2 };

/// What a request begins with. Then come layer ids, tokens and, if there are any, document ids in
/// one message under the reply tag. The answers are features, last states, and the seconds that the
/// target worked and waited since its last answer.
struct Request {
  int64_t kind = kRun;
  int64_t reply_tag = 0;
  int64_t rows = 0;
  int64_t tokens = 0;  // of a row
  int64_t layers = 0;
  int64_t has_documents = 0;
  int64_t dtype = 0;  // of the states, a torch::ScalarType

  static constexpr int64_t kNumbers = 7;

  torch::Tensor pack() const {
    return torch::tensor(
        {kind, reply_tag, rows, tokens, layers, has_documents, dtype}, torch::kLong);
  }
  static Request unpack(const torch::Tensor& numbers) {
    const auto* n = numbers.data_ptr<int64_t>();
    return {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
  }
  int64_t content_numbers() const { return layers + rows * tokens * (1 + has_documents); }
};

}  // namespace

TrainBatch RemoteTarget::make_train_batch(
    const model::Target& ends,
    data::SourceBatch batch,
    const std::vector<int64_t>& target_layer_ids,
    torch::ScalarType drafter_dtype) const {
  const auto& tokens = batch.tokens;
  const Request request{
      kRun,
      reply_tag_,
      tokens.ids.size(0),
      tokens.ids.size(1),
      static_cast<int64_t>(target_layer_ids.size()),
      tokens.document_ids.defined() ? 1 : 0,
      static_cast<int64_t>(drafter_dtype)};
  std::vector<torch::Tensor> content = {
      torch::tensor(target_layer_ids, torch::kLong), tokens.ids.flatten()};
  if (tokens.document_ids.defined()) content.push_back(tokens.document_ids.flatten());
  links_.send(request.pack(), server_, kRequestTag);
  links_.send(torch::cat(content), server_, reply_tag_);
  const int64_t D = ends.config().hidden_size;
  model::TargetStates states;
  states.features = torch::empty({request.rows, request.tokens, request.layers * D}, drafter_dtype);
  states.last = torch::empty({request.rows, request.tokens, D}, drafter_dtype);
  links_.receive(states.features, server_, reply_tag_);
  links_.receive(states.last, server_, reply_tag_);
  const auto seconds = torch::zeros({2}, torch::kDouble);  // working, waiting
  links_.receive(seconds, server_, reply_tag_);
  auto made = join_train_batch(ends, std::move(batch), states, drafter_dtype);
  auto& time = made.times.elsewhere.emplace();
  time.working = seconds[0].item<double>();
  time.waiting = seconds[1].item<double>();
  time.batches = 1;
  return made;
}

void RemoteTarget::say_goodbye(bool has_failed) const {
  links_.send(Request{.kind = has_failed ? kFailed : kDone}.pack(), server_, kRequestTag);
}

void serve_target(const model::Target& target, const Ranks& links, int64_t num_clients) {
  const auto numbers = torch::zeros({Request::kNumbers}, torch::kLong);
  WorkClock clock;  // from the first request on
  while (num_clients > 0) {
    const int64_t client = links.receive_any(numbers, kRequestTag);
    clock.begin_work();
    const auto request = Request::unpack(numbers);
    if (request.kind == kFailed) links.follow_end();
    if (request.kind == kDone) {
      --num_clients;
      continue;
    }
    const auto content = torch::empty({request.content_numbers()}, torch::kLong);
    links.receive(content, client, request.reply_tag);
    const auto* ids = content.data_ptr<int64_t>();
    const std::vector<int64_t> layer_ids(ids, ids + request.layers);
    const auto row_tensor = [&](int64_t number) {
      const int64_t count = request.rows * request.tokens;
      return content.narrow(0, request.layers + number * count, count)
          .view({request.rows, request.tokens});
    };
    data::TokenBatch tokens;
    tokens.ids = row_tensor(0);
    if (request.has_documents != 0) tokens.document_ids = row_tensor(1);
    const memory::Stage stage("the target's forward");
    const auto states = find_target_states(target, tokens, layer_ids);
    const auto dtype = static_cast<torch::ScalarType>(request.dtype);
    for (const auto& tensor : {states.features, states.last})
      links.send(tensor.to(torch::kCPU, dtype).contiguous(), client, request.reply_tag);
    const WorkTime time = clock.take();
    links.send(
        torch::tensor({time.working, time.waiting}, torch::kDouble), client, request.reply_tag);
    clock.begin_wait();
  }
}

}  // namespace draftsmith::pipeline
