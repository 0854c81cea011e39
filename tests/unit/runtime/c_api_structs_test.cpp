// Structs of older and newer headers, in and out.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/unit/runtime/c_api_test.hpp"

namespace attune::c_api_test {
namespace {

TEST_F(CApi, OptionsOfOtherVersionsAreReadAsFarAsTheyAreKnown) {
  struct Newer {
    att_runtime_options known;
    long unknown;
  };
  const struct {
    const char* what;
    std::size_t struct_size;
    long unknown;
    att_status status;
  } cases[] = {
      {"without `background`, as it was first", offsetof(att_runtime_options, background), 7,
       ATT_OK},
      {"without `log`", offsetof(att_runtime_options, log), 7, ATT_OK},
      {"without `check`", offsetof(att_runtime_options, check), 7, ATT_OK},
      {"this version's", sizeof(att_runtime_options), 7, ATT_OK},
      {"longer, asking for nothing unknown", sizeof(Newer), 0, ATT_OK},
      {"longer, asking for something unknown", sizeof(Newer), 1, ATT_BAD_INPUT},
      {"shorter than the first", offsetof(att_runtime_options, cache_file), 0, ATT_BAD_INPUT},
      {"zero", 0, 0, ATT_BAD_INPUT},
      {"uninitialised", SIZE_MAX, 0, ATT_BAD_INPUT},
  };
  for (const auto& [what, struct_size, unknown, status] : cases) {
    const Newer options = {{struct_size, "cpu", "", 0, nullptr, nullptr}, unknown};
    att_runtime* runtime = nullptr;
    EXPECT_EQ(att_runtime_create(&options.known, &runtime), status) << what;
    if (status != ATT_OK) {
      EXPECT_THAT(att_last_error(), HasSubstr("struct_size")) << what;
    }
    att_runtime_destroy(runtime);
  }
}

TEST_F(CApi, ArgumentsOfOtherVersionsAreReadAsFarAsTheyAreKnown) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  struct Newer {
    att_forward_args known;
    long unknown;
  };
  // Beyond its end an old host's struct may hold anything.
  Newer args = {arguments(), 7};
  args.known.struct_size = offsetof(att_forward_args, tensor_views);
  std::memset(&args.known.tensor_views, 0xAB, sizeof args - args.known.struct_size);
  EXPECT_EQ(att_forward(kernel_, &args.known, nullptr), ATT_OK) << att_last_error();
  args = {arguments(), 0};
  args.known.struct_size = sizeof args;
  EXPECT_EQ(att_forward(kernel_, &args.known, nullptr), ATT_OK) << att_last_error();
  args.unknown = 1;
  EXPECT_EQ(att_forward(kernel_, &args.known, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("larger than known"));
}

TEST_F(CApi, ADescriptionIsWrittenAsFarAsThereIsRoom) {
  spec(kFull);
  struct Room {
    att_spec_info known;
    unsigned char beyond[16];
  };
  const auto describe = [&](std::size_t struct_size) {
    Room room;
    std::memset(&room, 0xAB, sizeof room);
    room.known.struct_size = struct_size;
    EXPECT_EQ(att_spec_describe(spec_, &room.known), ATT_OK) << att_last_error();
    EXPECT_EQ(room.known.struct_size, struct_size);
    EXPECT_EQ(room.known.head_dim_v, 8);
    return room;
  };
  const std::size_t first = offsetof(att_spec_info, name);
  const Room older = describe(first);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&older);
  for (std::size_t i = first; i < sizeof older; ++i) ASSERT_EQ(bytes[i], 0xAB) << i;
  const Room newer = describe(sizeof(Room));
  EXPECT_STREQ(newer.known.name, "full");
  for (const unsigned char byte : newer.beyond) EXPECT_EQ(byte, 0);

  att_spec_info info = {};
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{8}, SIZE_MAX}) {
    info.struct_size = wrong;
    EXPECT_EQ(att_spec_describe(spec_, &info), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr("struct_size"));
  }
}

}  // namespace
}  // namespace attune::c_api_test
