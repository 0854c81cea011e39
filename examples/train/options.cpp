#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "shared.hpp"

namespace train {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Exit::kBadInput, what + "; train --help lists what there is");
}

std::uint64_t number(std::string_view name, std::string_view text, std::uint64_t low,
                     std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(std::string(name) + " takes a number from " + std::to_string(low) + " to " +
           std::to_string(high) + ", not " + std::string(text));
  }
  return value;
}

std::string device_named(std::string_view name) {
  constexpr std::string_view kCuda = "cuda:";
  const std::string_view ordinal = name.substr(std::min(kCuda.size(), name.size()));
  const bool is_cuda = name.starts_with(kCuda) && !ordinal.empty() && ordinal.size() <= 4 &&
                       ordinal.find_first_not_of("0123456789") == ordinal.npos;
  if (name != "cpu" && !is_cuda) {
    refuse("--device is cpu or cuda:0, cuda:1 and so on, not " + std::string(name));
  }
  return std::string(name);
}

}  // namespace

Options parse_options(int count, const char* const* arguments) {
  Options options;
  options.spec_file = TRAIN_DIRECTORY "/attention.yaml";
  options.text_file = TRAIN_DIRECTORY "/text.txt";
  bool chose_attention = false;
  const auto choose = [&](Options::Task task) {
    if (options.task != Options::Task::kTrain && options.task != task) {
      refuse("--compare and the checks exclude each other");
    }
    options.task = task;
  };
  for (int i = 1; i < count; ++i) {
    // --name value and --name=value.
    std::string_view name = arguments[i];
    std::string_view given;
    const std::size_t equals = name.find('=');
    const bool has_value = name.starts_with("--") && equals != name.npos;
    if (has_value) {
      given = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    const auto value = [&]() -> std::string_view {
      if (has_value) return given;
      if (i + 1 == count) refuse(std::string(name) + " takes a value");
      return arguments[++i];
    };
    const auto flag = [&] {
      if (has_value) refuse(std::string(name) + " takes no value");
    };
    if (name == "--help" || name == "-h") {
      options.task = Options::Task::kHelp;
      return options;
    } else if (name == "--compare") {
      flag();
      choose(Options::Task::kCompare);
    } else if (name == "--check-gradients") {
      flag();
      choose(Options::Task::kCheckGradients);
    } else if (name == "--check-operations") {
      flag();
      choose(Options::Task::kCheckOperations);
    } else if (name == "--check-kernels") {
      flag();
      choose(Options::Task::kCheckKernels);
    } else if (name == "--attention") {
      const std::string_view which = value();
      if (which != "attune" && which != "reference") {
        refuse("--attention is attune or reference, not " + std::string(which));
      }
      options.uses_reference = which == "reference";
      chose_attention = true;
    } else if (name == "--device") {
      options.device = device_named(value());
    } else if (name == "--products") {
      const std::string_view which = value();
      if (which != "cublas" && which != "own") {
        refuse("--products is cublas or own, not " + std::string(which));
      }
      options.products = which == "own" ? Products::kOwn : Products::kCublas;
    } else if (name == "--steps") {
      options.steps = static_cast<int>(number(name, value(), 1, 1000000));
    } else if (name == "--seed") {
      options.seed = number(name, value(), 0, UINT64_MAX);
    } else if (name == "--batch") {
      options.batch = number(name, value(), 1, 1024);
    } else if (name == "--length") {
      options.length = number(name, value(), 1, 16384);
    } else if (name == "--spec") {
      options.spec_file = value();
    } else if (name == "--text") {
      options.text_file = value();
    } else if (name == "--csv") {
      options.csv_file = value();
    } else if (name == "--svg") {
      options.svg_file = value();
    } else if (name == "--beside") {
      const std::string both(value());
      const std::size_t at = both.find('=');
      if (at == both.npos) refuse("--beside takes NAME=FILE, not " + both);
      options.beside.push_back(read_csv(both.substr(0, at), both.substr(at + 1)));
    } else {
      refuse(std::string(arguments[i]) + " is no option");
    }
  }
  if (chose_attention && options.task != Options::Task::kTrain) {
    refuse("--attention is for training alone: --compare and --check-gradients run both");
  }
  if (options.products == Products::kCublas && options.device == "cpu") {
    refuse("--products cublas is for a GPU");
  }
  return options;
}

std::string help() {
  return R"(train: a small transformer that learns a text, with Attune's attention

usage: train [options]

  --device cpu|cuda:N           what it runs on (cpu)
  --products cublas|own         a GPU's matrix products (cublas, where it is)
  --attention attune|reference  Attune's kernels, or attention by its definition (attune)
  --compare                     trains with both and compares: exit code 1 when the curves part
  --check-gradients             the model's gradients against finite differences, then ends
  --check-operations            all of the model but attention against fp64, then ends
  --check-kernels               compiles the kernels of GPUs, which needs none, then ends
  --steps N                     steps of training (400)
  --seed N                      of parameters, of the documents' order and of dropout (1)
  --batch N, --length N         rows of a batch and characters of a row (4, 256)
  --spec FILE                   what Attune's kernels compute ()" TRAIN_DIRECTORY
         R"(/attention.yaml)
  --text FILE                   paragraphs to learn ()" TRAIN_DIRECTORY R"(/text.txt)
  --csv FILE, --svg FILE        where the curve goes, as a table and as a picture
  --beside NAME=FILE            another run's table, for the picture; may be repeated
  --help                        this

Ctrl-C ends training after the step in hand; what there is by then is written.
Exit codes: 0 done, 1 failed or interrupted, 2 bad input, 3 nothing here to run it on.
)";
}

}  // namespace train
