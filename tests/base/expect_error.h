// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

namespace draftsmith::testing {

/// Fails unless `function` throws exactly this kind of error with a message that has all `words`.
/// Returns the message.
template <class Error, class Function>
std::string expect_error(Function&& function, std::initializer_list<std::string_view> words) {
  try {
    function();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string_view word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    }
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace draftsmith::testing
