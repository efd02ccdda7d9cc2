// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/cuda/op_checks.h"

#include <fmt/format.h>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/ops/rms_norm.h"
#include "draftsmith/ops/rotary.h"
#include "draftsmith/ops/swiglu.h"
#include "draftsmith/ops/top_k.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

/// A leaf on `device`, for gradients.
Tensor leaf(const Tensor& tensor, torch::Device device) {
  return tensor.to(device).clone().set_requires_grad(true);
}

void check_layer_ops(torch::Device device) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto x_start = random_normal({2, 6, 4, 64}, 1).to(dtype);
    const auto weight_start = random_normal({64}, 2).to(dtype);
    const auto angles = random_normal({2, 6, 32}, 3).to(dtype);
    const auto run = [&](torch::Device where) {
      const auto x = leaf(x_start, where), weight = leaf(weight_start, where);
      const ops::RotaryAngles turn{angles.cos().to(where), angles.sin().to(where)};
      const auto normed = ops::rms_norm(x, weight, 1e-6);
      const auto turned = ops::apply_rotary(normed, turn);
      const auto out = ops::swiglu(turned, normed);
      const auto gradients = torch::autograd::grad({out.to(torch::kFloat).sum()}, {x, weight});
      return std::vector<Tensor>{out.detach(), gradients[0], gradients[1]};
    };
    const auto got = run(device), wanted = run(torch::kCPU);
    const double rounding = dtype == torch::kFloat ? 1e-5 : 0.03;  // of four operations
    for (size_t i = 0; i < got.size(); ++i)
      require_close(
          got[i], wanted[i], rounding, rounding * wanted[i].abs().max().item<double>(),
          fmt::format("{} result {}", c10::toString(dtype), i));
  }
}

void check_top_k(torch::Device device) {
  const auto logits = random_normal({3, 5000}, 1).to(torch::kFloat);
  for (const int64_t k : {1, 8, 1500}) {  // the last is more than a kernel of a GPU gives
    const auto got = ops::top_k(logits.to(device), k), wanted = ops::top_k(logits, k);
    require_same(got.ids, wanted.ids, fmt::format("ids, k={}", k));
    require_close(got.log_probs, wanted.log_probs, 1e-5, 1e-5, fmt::format("log_probs, k={}", k));
  }
}

struct Head {
  ops::LossRows rows;
  Tensor lm_head;
};

/// Neighbouring rows share teacher rows; every fifth row has no weight.
Head make_head(torch::Device device, torch::ScalarType dtype, bool has_teacher) {
  constexpr int64_t R = 200, D = 48, V = 1000;
  const auto number = torch::arange(R, torch::kLong);
  Head head;
  head.rows.hidden = leaf(random_normal({R, D}, 1).to(dtype), device);
  head.rows.labels = (number * 7).remainder(V).to(device);
  head.rows.weights = number.remainder(5)
                          .ne(0)
                          .to(dtype == torch::kDouble ? torch::kDouble : torch::kFloat)
                          .to(device);
  if (has_teacher) {
    head.rows.teacher_states = random_normal({R, D}, 2).to(dtype).to(device);
    head.rows.teacher_rows = number.div(2, "floor").to(device);
  }
  head.lm_head = (0.3 * random_normal({V, D}, 3)).to(dtype).to(device);
  return head;
}

void check_head(torch::Device device) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const bool has_teacher : {false, true}) {
      const auto exact = make_head(torch::kCPU, torch::kDouble, has_teacher);
      const ops::LossOptions plain{.kl_weight = has_teacher ? 0.2 : 0.0, .cap_weight = 0.1};
      auto full = plain;
      full.method = ops::LossMethod::kFull;
      const auto wanted = ops::lm_head_loss(exact.rows, exact.lm_head, full);
      const auto wanted_gradient = torch::autograd::grad({wanted.loss_sum}, {exact.rows.hidden})[0];
      for (const int64_t chunk_rows : {0, 64, 150, 4000}) {
        const auto head = make_head(device, dtype, has_teacher);
        auto options = plain;
        options.chunk_rows = chunk_rows;
        options.top_k = 3;
        const auto terms = ops::lm_head_loss(head.rows, head.lm_head, options);
        const auto gradient = torch::autograd::grad({terms.loss_sum}, {head.rows.hidden})[0];
        const auto what = fmt::format(
            "{} teacher={} chunk_rows={}", c10::toString(dtype), has_teacher, chunk_rows);
        const double rounding = dtype == torch::kDouble  ? 1e-10
                                : dtype == torch::kFloat ? 1e-4
                                                         : 0.05;
        require_close(terms.row_loss, wanted.row_loss, rounding, rounding, what + " row_loss");
        require_close(
            gradient, wanted_gradient, rounding,
            rounding * wanted_gradient.abs().max().item<double>(), what + " gradient");
        if (dtype != torch::kBFloat16)
          require_same(terms.predicted, wanted.predicted, what + " predicted");
        const auto is_used = head.rows.weights > 0;
        require_same(
            terms.top_ids.select(1, 0).masked_select(is_used),
            terms.predicted.masked_select(is_used), what + " best id");
      }
    }
  }
}

void check_refusals(torch::Device device) {
  auto head = make_head(device, torch::kFloat, true);
  {
    const at::NoGradGuard no_grad;
    head.rows.hidden[17][3] = std::numeric_limits<double>::quiet_NaN();
  }
  try {
    ops::lm_head_loss(head.rows, head.lm_head, {.chunk_rows = 64});
  } catch (const ShapeError& error) {
    return require(
        std::string(error.what()).find("row 17") != std::string::npos,
        std::string("names the row: ") + error.what());
  }
  throw std::runtime_error("a hidden state that is not finite was taken");
}

}  // namespace

std::vector<OpCheck> op_checks() {
  std::vector<OpCheck> checks = {
      {"LayersHaveValuesAndGradientsOfTheCpu", check_layer_ops},
      {"TopKFindsWhatTheCpuFinds", check_top_k},
      {"TheHeadHasTheLossOfItsDefinitionInEveryChunkSize", check_head},
      {"TheHeadNamesARowThatIsNotFinite", check_refusals}};
  const auto mixers = mixer_op_checks();
  checks.insert(checks.end(), mixers.begin(), mixers.end());
  return checks;
}

}  // namespace draftsmith::testing
