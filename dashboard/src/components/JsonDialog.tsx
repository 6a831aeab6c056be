// A button that asks for a value as JSON and starts something with it.
import { Button, type ButtonProps, Modal } from "@mantine/core";
import { type ReactNode, useState } from "react";
import { JsonField } from "./SchemaForm";

interface JsonDialogProps extends ButtonProps {
  title: string;
  about: ReactNode;
  field: string;
  example: unknown;
  action: string;
  isBusy: boolean;
  start: (value: unknown, done: () => void) => void;
  label?: string;
}

export function JsonDialog({ title, about, field, example, action, isBusy, start, label, children, ...button }: JsonDialogProps & { children: ReactNode }) {
  const [isOpen, setOpen] = useState(false);
  const [value, setValue] = useState<unknown>(example);
  const [isValid, setValid] = useState(true);
  const close = () => setOpen(false);
  return (
    <>
      <Button
        {...button} {...(label === undefined ? {} : { "aria-label": label })}
        onClick={(event) => {
          event.stopPropagation();
          setValue(example);
          setValid(true);
          setOpen(true);
        }}
      >
        {children}
      </Button>
      <Modal opened={isOpen} onClose={close} title={title} closeButtonProps={{ "aria-label": "Close" }}>
        <form
          className="stack"
          onSubmit={(event) => {
            event.preventDefault();
            start(value, close);
          }}
        >
          <div className="quiet">{about}</div>
          {isOpen && <JsonField label={field} value={example} onChange={setValue} onValid={setValid} minRows={5} />}
          <div className="buttons">
            <Button variant="default" onClick={close}>Leave it</Button>
            <Button type="submit" disabled={!isValid} loading={isBusy}>{action}</Button>
          </div>
        </form>
      </Modal>
    </>
  );
}
