import { createTheme, type MantineColorsTuple } from "@mantine/core";

const accent: MantineColorsTuple = [
  "#f1f1fe", "#e0e0fb", "#c3c3f5", "#a3a3ee", "#8787e6", "#7070df", "#5b5bd6", "#4c4cbd", "#3f3f9e", "#33337f",
];
const dark: MantineColorsTuple = [
  "#ededef", "#b4b5bb", "#8f9098", "#63646c", "#3a3b41", "#2b2c31", "#212226", "#191a1d", "#131416", "#0d0e0f",
];

export const theme = createTheme({
  primaryColor: "accent",
  primaryShade: 6,
  colors: { accent, dark },
  fontFamily: 'Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
  fontFamilyMonospace: 'ui-monospace, SFMono-Regular, "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
  fontSizes: { xs: "11.5px", sm: "12.5px", md: "13.5px", lg: "15px", xl: "18px" },
  defaultRadius: "md",
  radius: { xs: "3px", sm: "5px", md: "7px", lg: "10px", xl: "14px" },
  cursorType: "pointer",
  components: {
    Button: { defaultProps: { size: "xs" } },
    ActionIcon: { defaultProps: { variant: "subtle", color: "gray" } },
    TextInput: { defaultProps: { size: "xs" } },
    Textarea: { defaultProps: { size: "xs" } },
    Select: { defaultProps: { size: "xs" } },
    NumberInput: { defaultProps: { size: "xs" } },
    Checkbox: { defaultProps: { size: "xs" } },
    SegmentedControl: { defaultProps: { size: "xs" } },
    Modal: { defaultProps: { centered: true, radius: "lg", overlayProps: { backgroundOpacity: 0.45, blur: 2 } } },
  },
});
