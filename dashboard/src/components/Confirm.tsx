// Asks before something is done that cannot be undone.
import { Button, Group, Modal, Text } from "@mantine/core";
import { Store, useStore } from "../app/store";

interface Question {
  title: string;
  text?: string;
  action: string;
  danger?: boolean;
  then: () => void;
}

const asked = new Store<Question | null>(null);

export const confirm = (question: Question): void => asked.set(question);

export function Confirm() {
  const question = useStore(asked);
  const close = () => asked.set(null);
  return (
    <Modal opened={question !== null} onClose={close} title={question?.title} size="sm" closeButtonProps={{ "aria-label": "Close" }}>
      {question?.text && <Text size="sm" c="dimmed" mb="md">{question.text}</Text>}
      <Group justify="flex-end" gap="xs">
        <Button variant="default" onClick={close}>Leave it</Button>
        <Button
          data-autofocus
          color={question?.danger ? "red" : "accent"}
          onClick={() => {
            close();
            question?.then();
          }}
        >
          {question?.action}
        </Button>
      </Group>
    </Modal>
  );
}
