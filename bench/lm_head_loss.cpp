// SPDX-License-Identifier: Apache-2.0
// The head against the matrix products that it cannot avoid:
//   build/release/bin/bench_lm_head_loss [--reference | --sparse] [--quick]
#include "draftsmith/ops/lm_head_loss.h"

#include <cstdio>
#include <set>

#include <torch/csrc/autograd/autograd.h>

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

using torch::Tensor;

struct Head {
  std::string name;
  int64_t vocab_size;
  int64_t width;
};

/// Rows of blocks of `K` slots whose anchors are `stride` apart; all of them supervised but for
/// those that `share` leaves out.
ops::LossRows
make_rows(int64_t blocks, int64_t K, int64_t stride, const Head& head, double share = 1) {
  const int64_t R = blocks * K;
  ops::LossRows rows;
  rows.hidden = random_bfloat16({R, head.width}, 1, 1).set_requires_grad(true);
  rows.teacher_states = random_bfloat16({blocks * stride + K, head.width}, 1, 2);
  const auto number = torch::arange(R, torch::kLong);
  rows.teacher_rows = number.div(K, "floor") * stride + number.remainder(K);
  rows.labels = (number * 7919).remainder(head.vocab_size);
  rows.weights =
      (number * 37).remainder(100).lt(static_cast<int64_t>(100 * share)).to(torch::kFloat);
  return rows;
}

int64_t count_supervised(const ops::LossRows& rows) {
  return rows.weights.gt(0).sum().item<int64_t>();
}

int64_t count_distinct(const ops::LossRows& rows) {
  const auto used = rows.teacher_rows.masked_select(rows.weights.gt(0));
  const auto* data = used.const_data_ptr<int64_t>();
  return static_cast<int64_t>(std::set<int64_t>(data, data + used.numel()).size());
}

struct Bench {
  explicit Bench(const Head& chosen)
      : head(chosen),
        lm_head(random_bfloat16(
            {head.vocab_size, head.width},
            1 / std::sqrt(static_cast<double>(head.width)),
            3)) {}

  /// Forward and gradient of the operation.
  Contender contender(const std::string& name, const ops::LossRows& rows, ops::LossOptions options)
      const {
    return {name, [=, this] {
              const auto terms = ops::lm_head_loss(rows, lm_head, options);
              torch::autograd::grad({terms.loss_sum}, {rows.hidden});
            }};
  }
  ops::LossOptions options(double kl_weight, double cap_weight) const {
    return {
        .kl_weight = kl_weight,
        .cap_weight = cap_weight,
        .chunk_rows = ops::default_chunk_rows(head.vocab_size, 2)};
  }
  Contender forward_product(int64_t rows) const {
    const auto states = random_bfloat16({rows, head.width}, 1, 4);
    return {"", [=, this] { torch::mm(states, lm_head.t()); }};
  }
  Contender backward_product(int64_t rows) const {
    const auto logits = random_bfloat16({rows, head.vocab_size}, 1, 5);
    return {"", [=, this] { torch::mm(logits, lm_head); }};
  }

  void report(const std::string& name, const Contender& contender, double floor) const {
    print_row(
        {fmt::format("{} x {}", head.vocab_size, head.width), name,
         fmt::format("{:.2f}", contender.time()), fmt::format("{:.2f}", floor),
         fmt::format("{:.3f}", contender.time() / floor),
         fmt::format("{:.0f}", static_cast<double>(contender.extra_bytes) / (1 << 20))});
  }

  void run(int repeats) const {
    const auto rows = make_rows(128, 16, 4, head);
    const auto sparse = make_rows(128, 16, 4, head, 0.3);
    const auto without_teacher = [](ops::LossRows some) {
      some.teacher_states = some.teacher_rows = Tensor();
      return some;
    };
    auto recompute = options(0.15, 0.1);
    recompute.method = ops::LossMethod::kRecompute;
    // 2,048 rows of this vocabulary would take 16 GiB in its float32 arrays.
    if (head.vocab_size > 200000) recompute.chunk_rows = 512;
    std::vector<Contender> all = {
        forward_product(2048),
        forward_product(count_distinct(rows)),
        backward_product(2048),
        forward_product(count_distinct(sparse)),
        contender("CE+KL+CAP", rows, options(0.15, 0.1)),
        contender("CE", without_teacher(rows), options(0, 0)),
        contender("CE, 30 % supervised", without_teacher(sparse), options(0, 0)),
        contender("CE+KL+CAP, 30 % supervised", sparse, options(0.15, 0.1)),
        contender("CE+KL+CAP, recompute", rows, recompute)};
    measure(all, repeats);
    const double student = all[0].time(), teacher = all[1].time(), back = all[2].time();
    const double share = static_cast<double>(count_supervised(sparse)) / 2048;
    report(all[4].name, all[4], student + teacher + back);
    report(all[5].name, all[5], student + back);
    report(all[6].name, all[6], share * (student + back));
    report(all[7].name, all[7], share * (student + back) + all[3].time());
    report(all[8].name, all[8], student + teacher + back);
    const double flops = 2.0 * 2048 * static_cast<double>(head.vocab_size * head.width);
    fmt::print(
        "\nGEMM of 2,048 rows: {:.0f} GFLOP/s forward, {:.0f} back. Seven student GEMMs / fused: "
        "{:.2f}; recompute / fused: {:.2f}; CE at {:.1f} % of the rows / CE at all: {:.3f}\n\n",
        flops / student / 1e9, flops / back / 1e9, 7 * student / all[4].time(),
        all[8].time() / all[4].time(), 100 * share, all[6].time() / all[5].time());
  }

  /// The time of a sparse mask beside that of all rows.
  void run_sparse() const {
    auto rows = make_rows(128, 16, 4, head);
    auto sparse = make_rows(128, 16, 4, head, 0.3);
    const int64_t supervised = count_supervised(sparse);
    std::vector<Contender> all = {
        forward_product(supervised), backward_product(supervised),
        forward_product(count_distinct(sparse)),
        contender("CE+KL+CAP, 30 % supervised", sparse, options(0.15, 0.1))};
    rows.teacher_states = rows.teacher_rows = Tensor();
    sparse.teacher_states = sparse.teacher_rows = Tensor();
    all.push_back(contender("CE", rows, options(0, 0)));
    all.push_back(contender("CE, 30 % supervised", sparse, options(0, 0)));
    measure(all, 1);
    const double floor = all[0].time() + all[1].time();
    report(all[3].name, all[3], floor + all[2].time());
    report(all[4].name, all[4], floor * 2048 / static_cast<double>(supervised));
    report(all[5].name, all[5], floor);
    fmt::print(
        "\nCE at {:.1f} % of the rows / CE at all: {:.3f}\n\n",
        100 * static_cast<double>(supervised) / 2048, all[5].time() / all[4].time());
  }

  void run_reference() const {
    const auto rows = make_rows(1024, 32, 48, head);
    std::vector<Contender> all = {contender("CE+KL+CAP, 32,768 rows", rows, options(0.15, 0.1))};
    reset_resident_peak();
    measure(all, 1);
    // Before the products below, whose operands would count.
    const double resident_gib = static_cast<double>(resident_peak_bytes()) / (1 << 30);
    std::vector<Contender> products = {forward_product(2048), backward_product(2048)};
    measure(products, 3);
    const auto distinct = static_cast<double>(count_distinct(rows));
    const double floor =
        products[0].time() * (32768 + distinct) / 2048 + products[1].time() * 32768 / 2048;
    report(all[0].name, all[0], floor);
    fmt::print(
        "\nPeak of resident memory, inputs, head and gradient included: {:.2f} GiB\n",
        resident_gib);
  }

  Head head;
  Tensor lm_head;
};

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  using namespace draftsmith;
  const auto flags = bench::read_flags(
      argc, argv, {"--reference", "--sparse", "--quick"},
      "bench_lm_head_loss [--reference | --sparse] [--quick]");
  memory::install_host_allocator();
  bench::print_header(
      {"V x D", "2,048 rows of 128 x 16, anchors 4 apart", "s", "floor, s", "ratio", "extra MiB"});
  const bench::Head heads[] = {
      {"small", 49152, 576}, {"medium", 151936, 1024}, {"reference", 248320, 5120}};
  for (const auto& head : heads) {
    const bool is_large = head.width > 2048;
    if (flags.contains("--reference") && is_large) {
      bench::Bench(head).run_reference();
    } else if (flags.contains("--sparse")) {
      if (is_large) bench::Bench(head).run_sparse();
    } else if (!flags.contains("--reference") && !(flags.contains("--quick") && is_large)) {
      bench::Bench(head).run(is_large ? 1 : 5);
    }
  }
}
