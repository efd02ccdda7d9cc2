// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/lm_head_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/head_chunk.h"
#include "draftsmith/ops/loss_rows.h"
#include "draftsmith/ops/product.h"
#include "draftsmith/ops/row_stream.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

constexpr int64_t kBackwardRows = 2048;  // scaled at a time
constexpr int64_t kShiftWords = 256;     // words looked at for the size of a row's logits

/// The value `row_loss` with the ready gradient `dhidden` of the rows `index` towards `hidden`.
struct ReadyGradient : torch::autograd::Function<ReadyGradient> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& hidden,
      const Tensor& row_loss,
      const Tensor& index,
      const Tensor& dhidden) {
    context->save_for_backward({index, dhidden});
    context->saved_data["rows"] = hidden.size(0);
    return row_loss.clone();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto& index = saved[0];
    const auto& dhidden = saved[1];
    const auto scale = upstream[0].index_select(0, index).unsqueeze(1);
    auto gradient =
        torch::zeros({context->saved_data["rows"].toInt(), dhidden.size(1)}, dhidden.options());
    for (int64_t first = 0; first < index.size(0); first += kBackwardRows) {
      const int64_t count = std::min(kBackwardRows, index.size(0) - first);
      const auto scaled = dhidden.narrow(0, first, count) * scale.narrow(0, first, count);
      gradient.index_copy_(0, index.narrow(0, first, count), scaled.to(dhidden.scalar_type()));
    }
    return {gradient, Tensor(), Tensor(), Tensor()};
  }
};

/// The array that the logits of every chunk go through.
Tensor make_logits_buffer(const std::vector<LossChunk>& chunks, const Tensor& lm_head) {
  int64_t most = 0;
  for (const auto& chunk : chunks)
    most = std::max(most, chunk.end - chunk.begin + static_cast<int64_t>(chunk.distinct.size()));
  const int64_t V = lm_head.size(0);
  try {
    return torch::empty({most, V}, lm_head.options());
  } catch (const std::exception&) {
    throw DeviceError(
        {.what = "memory for the logits of a chunk",
         .expected =
             fmt::format("{} bytes for {} rows of {}", most * V * lm_head.element_size(), most, V),
         .got = "none so large",
         .where = "lm_head_loss",
         .hint = "a smaller --loss.chunk_rows"});
  }
}

/// Ids of a chunk, on the device.
struct ChunkIds {
  Tensor distinct;  // [m] rows of teacher_states
  Tensor inverse;   // [r] places in `distinct`
  Tensor words;     // [..] some labels, each once
};

/// Those of all chunks in one copy, so that a GPU is not waited for between chunks. `labels` are
/// those of the supervised rows, on the host.
std::vector<ChunkIds>
put_chunk_ids(const std::vector<LossChunk>& chunks, const Tensor& labels, torch::Device device) {
  const int64_t* label = labels.const_data_ptr<int64_t>();
  std::vector<int64_t> all;
  std::vector<int64_t> num_words;
  for (const auto& chunk : chunks) {
    all.insert(all.end(), chunk.distinct.begin(), chunk.distinct.end());
    all.insert(all.end(), chunk.inverse.begin(), chunk.inverse.end());
    const std::set<int64_t> words(label + chunk.begin, label + chunk.end);
    num_words.push_back(std::min(kShiftWords, static_cast<int64_t>(words.size())));
    all.insert(all.end(), words.begin(), std::next(words.begin(), num_words.back()));
  }
  const auto ids = torch::tensor(all, torch::kLong).to(device);
  std::vector<ChunkIds> result;
  int64_t begin = 0;
  const auto take = [&](size_t count) {
    const auto taken = ids.narrow(0, begin, static_cast<int64_t>(count));
    begin += taken.size(0);
    return taken;
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    auto& chunk = result.emplace_back();
    chunk.distinct = take(chunks[i].distinct.size());
    chunk.inverse = take(chunks[i].inverse.size());
    chunk.words = take(static_cast<size_t>(num_words[i]));
  }
  return result;
}

/// Minus the logit that the likely words of each row lie around: a constant per row that softmax
/// does not see, and that lets bfloat16 round finely where the probability is. The largest logit
/// is not known before the product; that of the chunk's own labels is near it.
/// `teacher` [m, D] and `student` [r, D] give shifts of t and of z - t; without a teacher of z.
Tensor find_shifts(
    const Tensor& teacher,
    const Tensor& student,
    const ChunkIds& ids,
    const Tensor& lm_head) {
  const auto head = lm_head.index_select(0, ids.words).t();
  const auto [best, place] = torch::mm(student, head).max(1, /*keepdim=*/true);
  if (!teacher.defined()) return best.neg();
  const auto teacher_logits = torch::mm(teacher, head);
  const auto shift = best - teacher_logits.index_select(0, ids.inverse).gather(1, place);
  return torch::cat({teacher_logits.amax(1, /*keepdim=*/true), shift}).neg();
}

/// A chunk whose logits are there, or on their way, with all that they are made of.
struct RunningChunk {
  HeadChunk chunk;
  Tensor states, teacher, shifts;
};

/// `hidden` are the chunk's rows; they become rows of z - t.
RunningChunk start_chunk(
    const LossRows& rows,
    const Tensor& index,  // the chunk's supervised rows
    Tensor hidden,
    const ChunkIds& ids,
    const Tensor& lm_head,
    const Tensor& buffer,
    bool needs_gradient) {
  const int64_t count = index.size(0);
  const int64_t distinct = ids.distinct.size(0);
  RunningChunk run{
      .chunk =
          {.logits = buffer.narrow(0, distinct, count),
           .labels = rows.labels.index_select(0, index),
           .teacher_logits = {},
           .teacher_rows = {},
           .needs_gradient = needs_gradient},
      .states = std::move(hidden),
      .teacher = {},
      .shifts = {}};
  if (distinct > 0) {
    run.teacher = rows.teacher_states.detach().index_select(0, ids.distinct);
    run.chunk.teacher_rows = ids.inverse;
    run.chunk.teacher_logits = buffer.narrow(0, 0, distinct);
  }
  if (lm_head.scalar_type() == torch::kBFloat16)
    run.shifts = find_shifts(run.teacher, run.states, ids, lm_head);
  if (distinct > 0) {
    const auto difference = run.states.sub_(run.teacher.index_select(0, ids.inverse));
    run.states = torch::cat({run.teacher, difference});
  }
  // One GEMM for the teacher's logits t and the student's z - t.
  const auto logits = buffer.narrow(0, 0, distinct + count);
  product_out(logits, run.states, lm_head.t(), run.shifts);
  return run;
}

ChunkTerms run_head(const HeadChunk& chunk, const LossOptions& options) {
  const bool has_kernel = chunk.logits.is_cpu() || options.top_k <= cuda::kMaxTop;
  return has_kernel ? run_head_kernels(chunk, options) : run_head_composed(chunk, options);
}

/// Puts the terms of all supervised rows in their places and returns their gradient, if it is
/// needed. On a GPU the row kernels of a chunk run beside the product of the next one, each in its
/// own buffer.
Tensor run_chunks(
    LossTerms& terms,
    const LossRows& rows,
    const Tensor& supervised,
    const Tensor& lm_head,
    const LossOptions& options,
    bool needs_gradient,
    const MakeRowStream& make_row_stream) {
  const int64_t count = supervised.size(0);
  const auto device = lm_head.device();
  const auto labels = rows.labels.index_select(0, supervised).cpu();
  Tensor teacher_rows;
  if (rows.teacher_states.defined())
    teacher_rows = rows.teacher_rows.index_select(0, supervised).cpu();
  std::vector<Tensor> buffers;
  std::vector<RunningChunk> runs;
  const auto row_stream = make_row_stream(device);  // its end comes before that of what it uses
  const int64_t num_buffers = row_stream->overlaps() ? 2 : 1;
  const int64_t capacity = options.chunk_rows > 0 ? options.chunk_rows : 2 * count;
  const auto chunks = plan_even_chunks(
      teacher_rows.defined() ? teacher_rows.const_data_ptr<int64_t>() : nullptr, count,
      std::max<int64_t>(1, capacity / num_buffers));
  const auto ids = put_chunk_ids(chunks, labels, device);
  Tensor dhidden;
  if (needs_gradient) dhidden = torch::empty({count, rows.hidden.size(1)}, lm_head.options());
  for (int64_t i = 0; i < num_buffers; ++i)
    buffers.push_back(make_logits_buffer(chunks, lm_head));

  std::vector<Tensor> sums;  // of the hidden states: whether all are finite, looked at once
  runs.resize(chunks.size());
  const auto finish = [&](size_t i) {
    row_stream->wait_for(i);
    if (needs_gradient) {
      const auto out = dhidden.narrow(0, chunks[i].begin, chunks[i].end - chunks[i].begin);
      product_out(out, runs[i].chunk.logits, lm_head);
    }
    runs[i] = {};
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto index = supervised.narrow(0, chunks[i].begin, chunks[i].end - chunks[i].begin);
    Tensor hidden;
    if (row_stream->overlaps()) {
      hidden = rows.hidden.detach().index_select(0, index);
      sums.push_back(hidden.sum(torch::kFloat));
    } else {
      hidden = take_finite_rows(rows.hidden, index);
    }
    runs[i] = start_chunk(
        rows, index, std::move(hidden), ids[i], lm_head, buffers[i % buffers.size()],
        needs_gradient);
    row_stream->run([&terms, &run = runs[i], &options, index] {
      put_terms(terms, index, run_head(run.chunk, options));
    });
    if (!row_stream->overlaps()) {
      finish(i);
    } else if (i > 0) {
      finish(i - 1);
    }
  }
  if (row_stream->overlaps() && !chunks.empty()) finish(chunks.size() - 1);
  if (!sums.empty() && !torch::stack(sums).isfinite().all().item<bool>())
    take_finite_rows(rows.hidden, supervised);  // names the first that is not
  return dhidden;
}

}  // namespace

LossTerms fused_loss(
    const LossRows& rows,
    const Tensor& lm_head,
    const LossOptions& options,
    const MakeRowStream& make_row_stream) {
  const auto supervised = find_supervised_rows(rows, lm_head, options);
  const bool needs_gradient = rows.hidden.requires_grad() && at::GradMode::is_enabled();
  LossTerms terms = make_empty_terms(rows, options);
  Tensor dhidden;  // of the supervised rows
  {
    const at::NoGradGuard no_grad;
    dhidden =
        run_chunks(terms, rows, supervised, lm_head, options, needs_gradient, make_row_stream);
    terms.row_loss = combine_terms(terms.ce, terms.kl, terms.cap, options);
  }
  if (needs_gradient)
    terms.row_loss = ReadyGradient::apply(rows.hidden, terms.row_loss, supervised, dhidden);
  return terms;
}

}  // namespace draftsmith::ops
