module door_lock #(
    parameter PASSWORD_LENGTH = 4,
    parameter MAX_TRIALS = 3
) (
    input  logic                         clk,
    input  logic                         srst,
    input  logic [3:0]                   key_input,
    input  logic                         key_valid,
    input  logic                         confirm,
    input  logic                         admin_override,
    input  logic                         admin_set_mode,
    input  logic [PASSWORD_LENGTH*4-1:0] new_password,
    input  logic                         new_password_valid,
    output logic                         door_unlock,
    output logic                         lockout
);
    typedef enum logic [2:0] {
        IDLE, ENTER_PASS, CHECK_PASS, PASSWORD_OK, PASSWORD_FAIL, LOCKED_OUT, ADMIN_MODE
    } state_t;
    state_t state;
    logic [PASSWORD_LENGTH*4-1:0]           stored, entered;
    logic [$clog2(PASSWORD_LENGTH + 1)-1:0] digits;
    logic [$clog2(MAX_TRIALS + 1)-1:0]      fail_count;

    wire digit = key_valid && key_input <= 9;

    always_ff @(posedge clk)
        if (srst) begin
            state <= IDLE;
            stored <= 1;
            {entered, digits, fail_count, door_unlock, lockout} <= 0;
        end else begin
            door_unlock <= 0;
            case (state)
                IDLE:
                    if (admin_override && admin_set_mode) state <= ADMIN_MODE;
                    else if (admin_override) state <= PASSWORD_OK;
                    else if (digit) begin
                        entered <= key_input;
                        digits <= 1;
                        state <= ENTER_PASS;
                    end
                ENTER_PASS:
                    if (confirm && digits == PASSWORD_LENGTH) state <= CHECK_PASS;
                    else if (confirm) state <= PASSWORD_FAIL;
                    else if (digit && digits < PASSWORD_LENGTH) begin
                        entered <= {entered, key_input};
                        digits <= digits + 1;
                    end
                CHECK_PASS:
                    if (entered == stored) state <= PASSWORD_OK;
                    else state <= PASSWORD_FAIL;
                PASSWORD_OK: begin
                    {fail_count, lockout} <= 0;
                    door_unlock <= 1;
                    state <= IDLE;
                end
                PASSWORD_FAIL: begin
                    fail_count <= fail_count + 1;
                    lockout <= fail_count == MAX_TRIALS - 1;
                    if (fail_count == MAX_TRIALS - 1) state <= LOCKED_OUT;
                    else state <= IDLE;
                end
                LOCKED_OUT: if (admin_override) state <= PASSWORD_OK;
                default: if (new_password_valid) begin
                    stored <= new_password;
                    state <= IDLE;
                end
            endcase
        end
endmodule
