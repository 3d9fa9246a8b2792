/*
 * The functions of Ascend's runtime that Mooncake's build for Ascend needs to load and serve TCP where there is no card: "no
 * devices here". That build is the one on PyPI that has Mooncake's C interface. scripts/scale_venv.sh compiles it as the
 * three libraries that the build names.
 */

enum { FAILED = 1 };

int aclrtGetDeviceCount(unsigned *n) {
    *n = 0;
    return 0;
}

int aclrtGetDevice(int *device) {
    *device = -1;
    return FAILED;
}

int aclrtSetDevice(int device) {
    (void)device;
    return FAILED;
}

int aclrtPointerGetAttributes(const void *at, void *attributes) {
    (void)at, (void)attributes;
    return FAILED;
}

const char *aclGetRecentErrMsg(void) {
    return "no cards";
}
